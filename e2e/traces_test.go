package e2e_test

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/outboxd/outboxd/providers/providertest"
)

// traceReceiver takes traces as OpenTelemetry's collector does.
type traceReceiver struct {
	t *testing.T

	mu     sync.Mutex
	spans  []span
	bodies []byte
}

// span is one that was received, and the program that sent it.
type span struct {
	*tracepb.Span
	service string
}

func receiveTraces(t *testing.T) (*traceReceiver, string) {
	t.Helper()
	r := &traceReceiver{t: t}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, server.URL
}

// ServeHTTP implements OTLP over HTTP.
func (r *traceReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var batch collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &batch) != nil {
		r.t.Errorf("%s %s is no export of traces: %v", req.Method, req.URL.Path, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, body...)
	for _, resource := range batch.ResourceSpans {
		service := ""
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, span{s, service})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// named returns the spans of a name, in the order of their beginnings.
func (r *traceReceiver) named(name string) []span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []span
	for _, s := range r.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano) })
	return found
}

func (s span) attribute(name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// traced are the trace ids on the program's log lines of a kind.
func (p *process) traced(message string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ids []string
	for _, text := range p.lines {
		var line struct {
			Msg     string
			TraceID string `json:"trace_id"`
		}
		if json.Unmarshal([]byte(text), &line) == nil && line.Msg == message {
			ids = append(ids, line.TraceID)
		}
	}
	return ids
}

// submitTraced submits an email as part of a trace.
func (in *installation) submitTraced(base, traceparent string, mail map[string]any) (id string) {
	in.t.Helper()
	body, err := json.Marshal(mail)
	if err != nil {
		in.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(in.t.Context(), http.MethodPost, base+"/emails", bytes.NewReader(body))
	if err != nil {
		in.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+in.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", traceparent)
	req.Header.Set("Tracestate", "vendor=jane")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusAccepted {
		in.t.Fatalf("answer %d", resp.StatusCode)
	}
	return strings.TrimPrefix(resp.Header.Get("Location"), "/emails/")
}

// One trace goes from the client through the request and the job to both attempts
// of an email, by processes of their own. What has not been exported when they stop
// is exported then.
func TestTraceOfAnEmail(t *testing.T) {
	t.Parallel()
	const trace, client = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	in := install(t)
	receiver, url := receiveTraces(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	var once sync.Once
	provider.Respond(func(providertest.Seen) providertest.Reaction {
		reaction := providertest.Accept()
		once.Do(func() { reaction = providertest.Reply(http.StatusTooManyRequests, `{"name":"rate_limit_exceeded"}`) })
		return reaction
	})
	// Nothing is exported before the programs stop.
	traced := append(resendEnv(provider), "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_BSP_SCHEDULE_DELAY=3600000")
	api, worker := in.start("api", traced...), in.start("worker", traced...)
	id := in.submitTraced(api.url("api"), "00-"+trace+"-"+client+"-01", email(0))
	in.awaitEnded()

	var shown struct {
		Attempts []struct {
			Stage   string
			TraceID string `json:"trace_id"`
		}
	}
	mustCall(t, http.MethodGet, api.url("api")+"/emails/"+id, in.token, "", nil).decode(t, &shown)
	if len(shown.Attempts) != 2 || shown.Attempts[0].Stage != "deferred" || shown.Attempts[1].Stage != "accepted" {
		t.Fatalf("attempts %+v, want a deferred and an accepted one", shown.Attempts)
	}
	for i, a := range shown.Attempts {
		if a.TraceID != trace {
			t.Errorf("attempt %d shows the trace %q, want %s", i+1, a.TraceID, trace)
		}
	}
	worker.stop(syscall.SIGTERM)
	api.stop(syscall.SIGTERM)
	receiver.checkEmail(t, trace, client, id)
	eventually(t, "a log line of a request names the trace", func() bool {
		return slices.Contains(api.traced("request"), trace)
	})
	eventually(t, "the log lines of both attempts name the trace", func() bool {
		return slices.Equal(worker.traced("attempt"), []string{trace, trace})
	})
	for _, secret := range []string{"example.org", "example.com", "Mail 0", "Hello.", in.token, "re_test", "jane"} {
		if bytes.Contains(receiver.bodies, []byte(secret)) {
			t.Errorf("the spans hold %q", secret)
		}
	}
}

// checkEmail looks for the spans of an email with two attempts.
func (r *traceReceiver) checkEmail(t *testing.T, trace, client, email string) {
	t.Helper()
	requests, jobs, sends := r.named("POST /emails"), r.named("deliver_email"), r.named("send resend")
	if len(requests) != 1 || len(jobs) < 2 || len(sends) != 2 {
		t.Fatalf("%d requests, %d runs of the job, %d attempts", len(requests), len(jobs), len(sends))
	}
	for _, s := range slices.Concat(requests, jobs, sends) {
		if got := hexOf(s.TraceId); got != trace {
			t.Errorf("%s is in the trace %s, want %s", s.Name, got, trace)
		}
	}
	request := requests[0]
	if got := hexOf(request.ParentSpanId); got != client || request.service != "outboxd-api" {
		t.Errorf("the request's span comes after %s from %s, want %s", got, request.service, client)
	}
	runs := map[string]bool{}
	for _, job := range jobs {
		runs[string(job.SpanId)] = true
		if !bytes.Equal(job.ParentSpanId, request.SpanId) || job.service != "outboxd-worker" || job.attribute("outboxd.email") != email {
			t.Errorf("a run of %s by %s is not below the request", job.attribute("outboxd.email"), job.service)
		}
	}
	for i, stage := range []string{"deferred", "accepted"} {
		if send := sends[i]; !runs[string(send.ParentSpanId)] || send.attribute("outboxd.stage") != stage {
			t.Errorf("attempt %d: %v", i+1, send)
		}
	}
}

func hexOf(id []byte) string { return hex.EncodeToString(id) }

// Without OTEL_* the header of a request changes nothing.
func TestNoTraces(t *testing.T) {
	t.Parallel()
	in := install(t)
	provider := providertest.NewHTTP(t, providertest.Resend)
	receiver, url := receiveTraces(t)
	for name, env := range map[string][]string{
		"not configured": nil,
		"switched off":   {"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_SDK_DISABLED=true"},
	} {
		api := in.start("api", append(resendEnv(provider), env...)...)
		in.submitTraced(api.url("api"), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", email(0))
		if n := in.count(`SELECT count(*) FROM outbox.river_job WHERE metadata ->> 'traceparent' IS NOT NULL`); n != 0 {
			t.Errorf("%s: the job carries a trace", name)
		}
		api.stop(syscall.SIGTERM)
		eventually(t, "the log line names no trace", func() bool { return slices.Equal(api.traced("request"), []string{""}) })
	}
	if len(receiver.bodies) > 0 {
		t.Error("traces were exported")
	}
}
