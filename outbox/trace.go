package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A trace goes from a submission through its job to each attempt. The job carries
// it: in its metadata, and only if the submission is part of one. No span holds an
// address, a subject, a body or the text of an error.

// tracerName is the scope of the spans.
const tracerName = "github.com/outboxd/outboxd/outbox"

// traceparent is the name of the W3C header, and of its value in a job's metadata.
const traceparent = "traceparent"

// jobMetadata carries the trace of a submission; nil: it is part of none. The
// header tracestate is left out: it may hold anything, and River UI shows metadata.
func jobMetadata(ctx context.Context) []byte {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	metadata, err := json.Marshal(map[string]string{traceparent: carrier[traceparent]})
	if err != nil {
		return nil // a string always can be
	}
	return metadata
}

// withTraceOf continues the trace that a job carries, if it does.
func withTraceOf(ctx context.Context, metadata []byte) context.Context {
	if !bytes.Contains(metadata, []byte(`"`+traceparent+`"`)) {
		return ctx
	}
	var carried map[string]any
	if err := json.Unmarshal(metadata, &carried); err != nil {
		return ctx
	}
	parent, _ := carried[traceparent].(string)
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

// traceID is the trace that somebody records; empty: nobody does.
func traceID(ctx context.Context) string {
	if span := trace.SpanContextFromContext(ctx); span.IsSampled() {
		return span.TraceID().String()
	}
	return ""
}

// logTrace is the trace on a log line; nothing without one.
func logTrace(ctx context.Context) slog.Attr {
	id := traceID(ctx)
	if id == "" {
		return slog.Attr{}
	}
	return slog.String("trace_id", id)
}

// tracer makes the spans of a worker.
func (d *deliverer) tracer() trace.Tracer {
	provider := d.cfg.TracerProvider
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer(tracerName)
}

// traceJob begins the span of one run of a delivery job.
func (d *deliverer) traceJob(ctx context.Context, email string, metadata []byte) (context.Context, trace.Span) {
	ctx, span := d.tracer().Start(withTraceOf(ctx, metadata), deliverArgs{}.Kind(), trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("outboxd.email", email), attribute.String("outboxd.worker", d.worker))
	}
	return ctx, span
}

// endSpan ends a span. An error's text may hold anything, so only that there was one
// is said.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// traceAttempt begins the span of a hand-over: of the first one of an attempt, or of
// its replay.
func (d *deliverer) traceAttempt(ctx context.Context, a *attempt) (context.Context, trace.Span) {
	ctx, span := d.tracer().Start(ctx, "send "+a.beginning.provider, trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("outboxd.email", a.email.String()), attribute.Int("outboxd.attempt", int(a.number)),
			attribute.String("outboxd.provider", a.beginning.provider), attribute.String("outboxd.provider_key", a.key.String()),
			attribute.String("outboxd.evidence", string(a.evidence)))
	}
	return ctx, span
}

// traceOutcome says on the attempt's span what came of it.
func traceOutcome(ctx context.Context, e ending) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("outboxd.stage", string(e.stage)), attribute.Int("outboxd.status_code", e.statusCode))
	if e.stage != StageAccepted {
		span.SetStatus(codes.Error, string(e.stage))
	}
}
