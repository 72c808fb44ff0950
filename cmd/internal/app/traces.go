package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// flushTimeout bounds how long a program that stops waits for its last traces to
// be taken.
const flushTimeout = 5 * time.Second

// TracesConfig are those of OpenTelemetry's variables that say whether and where
// traces go. The exporter and the SDK read the others by themselves.
type TracesConfig struct {
	Disabled       bool   `env:"OTEL_SDK_DISABLED"`
	Exporter       string `env:"OTEL_TRACES_EXPORTER"`
	Endpoint       string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	Protocol       string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
}

// on reports whether there are traces.
func (c *TracesConfig) on() bool {
	return !c.Disabled && (c.Exporter == "otlp" || c.Exporter == "" && c.Endpoint+c.TracesEndpoint != "")
}

// check quotes no endpoint: it may hold a password.
func (c *TracesConfig) check() []error {
	if c.Disabled {
		return nil
	}
	var errs []error
	if !slices.Contains([]string{"", "none", "otlp"}, c.Exporter) {
		errs = append(errs, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; use otlp or none", c.Exporter))
	}
	if !c.on() {
		return errs
	}
	for name, protocol := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL": c.Protocol, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": c.TracesProtocol,
	} {
		if !slices.Contains([]string{"", "http/protobuf", "http/json"}, protocol) {
			errs = append(errs, fmt.Errorf("%s is %q; use http/protobuf or http/json", name, protocol))
		}
	}
	for name, endpoint := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.Endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.TracesEndpoint,
	} {
		u, err := url.Parse(endpoint)
		if endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			errs = append(errs, fmt.Errorf("%s is no address such as http://collector:4318", name))
		}
	}
	return errs
}

// exportTo is where traces go. Without an endpoint it is the one of the
// specification; the exporter's own default has https.
func (c *TracesConfig) exportTo() string {
	if c.TracesEndpoint != "" {
		return c.TracesEndpoint
	}
	return strings.TrimSuffix(cmp.Or(c.Endpoint, "http://localhost:4318"), "/") + "/v1/traces"
}

// start begins to export traces, if that is configured. Nothing is asked of the
// receiver: it may come and go.
func (c *TracesConfig) start(ctx context.Context, program string, log *slog.Logger) (*traces, error) {
	if !c.on() {
		return &traces{}, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(c.exportTo()))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	described, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", program), attribute.String("service.version", Version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	quiet := newQuietExporter(ctx, exporter, log)
	return &traces{
		sdk:      sdktrace.NewTracerProvider(sdktrace.WithBatcher(quiet), sdktrace.WithResource(described)),
		exporter: quiet,
		patience: flushTimeout,
	}, nil
}

// traces are on their way out; the zero value has none.
type traces struct {
	sdk      *sdktrace.TracerProvider
	exporter *quietExporter
	// patience bounds the end.
	patience time.Duration
}

// provider is nil, without a type, when there are no traces.
func (t *traces) provider() trace.TracerProvider {
	if t.sdk == nil {
		return nil
	}
	return t.sdk
}

// stop sends what is left, for a few seconds at most, whatever has become of ctx.
func (t *traces) stop(ctx context.Context) {
	if t.sdk == nil {
		return
	}
	defer t.exporter.abandon()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.patience)
	defer cancel()
	if err := t.sdk.Shutdown(ctx); err != nil {
		t.exporter.log.WarnContext(ctx, "the last traces are lost", "error", err)
	}
}

// quietExporter says once that traces cannot be delivered, and once that they can
// be again, where the SDK would say it of each batch. They are lost meanwhile:
// mail does not wait for them.
type quietExporter struct {
	sdktrace.SpanExporter
	log     *slog.Logger
	failing atomic.Bool
	// abandoned ends what is being exported.
	abandoned context.Context
	abandon   context.CancelFunc
}

func newQuietExporter(ctx context.Context, exporter sdktrace.SpanExporter, log *slog.Logger) *quietExporter {
	e := &quietExporter{SpanExporter: exporter, log: log}
	e.abandoned, e.abandon = context.WithCancel(context.WithoutCancel(ctx))
	return e
}

// ExportSpans implements [sdktrace.SpanExporter]. It never fails.
func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.abandoned, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if failing := err != nil; e.failing.Swap(failing) == failing || errors.Is(e.abandoned.Err(), context.Canceled) {
		return nil
	}
	if err != nil {
		e.log.WarnContext(ctx, "traces are lost: nobody takes them", "error", err)
	} else {
		e.log.InfoContext(ctx, "traces are taken again")
	}
	return nil
}
