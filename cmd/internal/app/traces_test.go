package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func TestTracesConfig(t *testing.T) {
	t.Parallel()
	const local = "http://localhost:4318/v1/traces"
	for name, test := range map[string]struct {
		environ  []string
		on       bool
		exportTo string
	}{
		"nothing":         {nil, false, local},
		"endpoint":        {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/"}, true, "http://c:4318/v1/traces"},
		"traces endpoint": {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://d/x"}, true, "https://d/x"},
		"exporter":        {[]string{"OTEL_TRACES_EXPORTER=otlp"}, true, local},
		"none":            {[]string{"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c"}, false, "http://c/v1/traces"},
		"disabled":        {[]string{"OTEL_TRACES_EXPORTER=otlp", "OTEL_SDK_DISABLED=true", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, false, local},
	} {
		cfg, err := LoadConfig(append(test.environ, "DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=smtp"))
		if err != nil || cfg.Traces.on() != test.on || cfg.Traces.exportTo() != test.exportTo {
			t.Errorf("%s: on %v to %q, error %v", name, cfg.Traces.on(), cfg.Traces.exportTo(), err)
		}
	}
	_, err := LoadConfig([]string{
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=user:s3cr3t@collector:4317",
	})
	for _, want := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error does not mention %s, or shows the password:\n%v", want, err)
		}
	}
	if _, err := LoadConfig([]string{"OTEL_TRACES_EXPORTER=jaeger"}); !strings.Contains(err.Error(), "OTEL_TRACES_EXPORTER") {
		t.Errorf("an exporter that is not there: %v", err)
	}
}

// exporter is a receiver that answers as a test wants.
type exporter func(context.Context) error

// ExportSpans implements [sdktrace.SpanExporter].
func (e exporter) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error { return e(ctx) }

// Shutdown implements [sdktrace.SpanExporter].
func (exporter) Shutdown(context.Context) error { return nil }

// That nobody takes the traces is said once, and so is that somebody does again.
func TestLostTracesAreToldOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var failure error
	quiet := newQuietExporter(t.Context(), exporter(func(context.Context) error { return failure }), slog.New(slog.NewTextHandler(&out, nil)))
	down := errors.New("connection refused")
	for _, failure = range []error{nil, down, down, nil, nil, down} {
		if err := quiet.ExportSpans(t.Context(), nil); err != nil {
			t.Errorf("the SDK is told: %v", err)
		}
	}
	if lost, back := strings.Count(out.String(), "traces are lost"), strings.Count(out.String(), "taken again"); lost != 2 || back != 1 {
		t.Errorf("lost %d times, back %d times:\n%s", lost, back, &out)
	}
}

// A receiver that takes the connection and never answers does not keep a program
// from ending.
func TestStopDoesNotWaitForTraces(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	asked, ended := make(chan struct{}), make(chan struct{})
	quiet := newQuietExporter(t.Context(), exporter(func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}), slog.New(slog.NewTextHandler(&out, nil)))
	hung := &traces{sdk: sdktrace.NewTracerProvider(sdktrace.WithBatcher(quiet)), exporter: quiet, patience: 50 * time.Millisecond}
	_, span := hung.provider().Tracer("test").Start(t.Context(), "one")
	span.End()
	hung.stop(t.Context())
	<-asked
	<-ended // and leaves nothing behind
	if !strings.Contains(out.String(), "the last traces are lost") {
		t.Errorf("the log says %q", out.String())
	}
}
