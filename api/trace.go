package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// tracerName is the scope of the spans.
const tracerName = "github.com/outboxd/outboxd/api"

// tracer makes a span of each request; its zero value makes none.
type tracer struct{ trace.Tracer }

func newTracer(provider trace.TracerProvider) tracer {
	if provider == nil {
		return tracer{}
	}
	return tracer{provider.Tracer(tracerName)}
}

// start begins the span of a request, in the trace that the request names in its
// header traceparent. Its tracestate, which may hold anything, is dropped. Probes
// ask every few seconds and are not traced.
func (t tracer) start(r *http.Request) (*http.Request, trace.Span) {
	if t.Tracer == nil || strings.HasSuffix(r.URL.Path, "/healthz") || strings.HasSuffix(r.URL.Path, "/readyz") {
		return r, trace.SpanFromContext(context.Background())
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.MapCarrier{"traceparent": r.Header.Get("Traceparent")})
	ctx, span := t.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
	return r.WithContext(ctx), span
}

// endSpan ends a request's span. It names the route's pattern: a path may hold an
// address.
func endSpan(span trace.Span, r *http.Request, l *line, status int) {
	if span.IsRecording() {
		route := chi.RouteContext(r.Context()).RoutePattern()
		span.SetName(strings.TrimSpace(r.Method + " " + route))
		span.SetAttributes(
			attribute.String("http.request.method", r.Method), attribute.String("http.route", route),
			attribute.Int("http.response.status_code", status),
			attribute.String("outboxd.request_id", l.requestID), attribute.String("outboxd.org", l.org))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, l.name)
		}
	}
	span.End()
}

// logTrace is the trace on a log line; nothing if nobody records one.
func logTrace(span trace.Span) slog.Attr {
	if c := span.SpanContext(); c.IsSampled() {
		return slog.String("trace_id", c.TraceID().String())
	}
	return slog.Attr{}
}
