package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
)

const (
	// concurrentSends is how many messages are sent at once, and
	// concurrentSendsShort how many with -short.
	concurrentSends      = 2000
	concurrentSendsShort = 200

	// patience is how long anything may take before a test gives up.
	patience = 2 * time.Minute

	// bulk is an attachment that does not fit the kernel's buffers in base64
	// (Linux lets the sender's grow to 4 MB), so that its upload can be
	// interrupted.
	bulk = 4 << 20
)

// Suite describes an adapter to [Run].
type Suite struct {
	// Start starts the programmable provider that speaks the adapter's
	// protocol: [NewHTTP] or [NewSMTP].
	Start func(t testing.TB) Server

	// New returns the adapter, pointed at url.
	New func(t testing.TB, url string) providers.Provider

	// Secrets must never appear in an error.
	Secrets []string

	// Definite are the statuses (HTTP) or reply codes after the content
	// (SMTP) that the vendor documents as not accepted. All others from 300
	// to 599 have to be in doubt, and every 2xx accepted.
	Definite map[int]providers.Outcome

	// Fit, for services that carry less than others, takes out of the suite's
	// messages what the adapter refuses on their behalf, such as header fields
	// of the sender's own. Nil: nothing.
	Fit func(*providers.Message)

	// Refuses are the codes of those refusals. A message that breaks senders
	// may be refused with one of them where others carry it.
	Refuses []string
}

// checks are what [Run] goes through. A name has no slash, and no characters that
// the testing package rewrites except spaces: see [Checks].
var checks = []struct {
	name string
	test func(*testing.T, Suite)
}{
	{"Render is pure and reaches the wire byte for byte", testRender},
	{"every status is classified (F2, F3)", testStatuses},
	{"faults are classified, with one request each (F4, F5, F19, F20)", testFaults},
	{"a late reply is taken (F4)", testLateReply},
	{"no connection is definite", testUnreachable},
	{"context", testContext},
	{"Confirm", testConfirm},
	{"no secret in an error", testSecrets},
	{"concurrent sends deliver exactly their set (F1)", testConcurrency},
	{"a key is good for one message", testKeys},
	{"a search finds the message and nothing else", testFinder},
	{"messages that break senders (F23, F24, F40)", testMessages},
}

// httpGroup is the name of the checks that only HTTP can fail, see httpFaults.
const httpGroup = "HTTP"

// Checks returns the names of all checks, in order, as paths below the test that
// calls [Run].
func Checks() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	for _, f := range httpFaults {
		names = append(names, httpGroup+"/"+f.name)
	}
	return names
}

// Run checks an adapter against the contract of package providers. The rows
// named F1, F2, ... are public reports of what went wrong in other senders. What
// the adapter says of itself is in the test's attributes, see [testing.T.Attr].
func Run(t *testing.T, s Suite) {
	t.Helper()
	describe(t, s)
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, s)
		})
	}
	t.Run(httpGroup, func(t *testing.T) {
		t.Parallel()
		runHTTP(t, s)
	})
}

// bench is an adapter with the provider it talks to.
type bench struct {
	suite    Suite
	server   Server
	provider providers.Provider
}

func newBench(t *testing.T, s Suite) *bench {
	t.Helper()
	server := s.Start(t)
	return &bench{suite: s, server: server, provider: s.New(t, server.URL())}
}

// key returns the n-th attempt's key.
func key(n int) string { return fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n) }

// Request returns the n-th request of a series. It has what most services carry;
// see [Suite].Fit for the others.
func Request(n int) providers.Request {
	return providers.Request{
		Key:  key(n),
		Date: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Message: providers.Message{
			From:    providers.Address{Name: "Müller, Jürgen", Email: "sender@example.com"},
			To:      []providers.Address{{Email: fmt.Sprintf("to-%d@example.org", n)}},
			Subject: fmt.Sprintf("Message %d", n),
			Text:    "One line.\r\n.\r\nThe line above is a single dot.\r\n",
			HTML:    "<p>One <b>line</b> &amp; more.</p>\r\n",
			Headers: []providers.Header{{Name: "X-Order", Value: "42"}},
		},
	}
}

// request returns the n-th request, as the adapter carries it.
func (s Suite) request(n int) providers.Request {
	r := Request(n)
	if s.Fit != nil {
		s.Fit(&r.Message)
	}
	return r
}

// sending renders the n-th request, with a large attachment if asked for.
func (b *bench) sending(t *testing.T, n int, large bool) providers.Sending {
	t.Helper()
	r := b.suite.request(n)
	if large {
		r.Message.Attachments = []providers.Attachment{{
			Filename: "large.txt", ContentType: "text/plain",
			Content: bytes.Repeat([]byte("0123456789abcdef"), bulk/16),
		}}
	}
	payload, err := b.provider.Render(r)
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	return providers.Sending{Request: r, Payload: payload}
}

// send sends and checks what holds for every send: errors are of the contract's
// type, have no secrets, and there was one request at most.
func (b *bench) send(ctx context.Context, t *testing.T, s providers.Sending) (providers.Receipt, *providers.Error) {
	t.Helper()
	before := b.server.Requests()
	receipt, err := b.provider.Send(ctx, s)
	if n := b.server.Requests() - before; n > 1 {
		t.Errorf("%d requests on the wire for one send", n)
	}
	if err == nil {
		return receipt, nil
	}
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		t.Fatalf("error of type %T, want *providers.Error: %v", err, err)
	}
	if receipt != (providers.Receipt{}) {
		t.Errorf("a receipt together with an error: %+v", receipt)
	}
	b.checkSecrets(t, err, e)
	return receipt, e
}

func (b *bench) checkSecrets(t *testing.T, err error, e *providers.Error) {
	t.Helper()
	texts := []string{e.Detail, e.Code}
	for ; err != nil; err = errors.Unwrap(err) {
		texts = append(texts, err.Error(), fmt.Sprintf("%+v", err))
	}
	for _, secret := range b.suite.Secrets {
		for _, text := range texts {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in the error: %q", text)
			}
		}
	}
}

// patient returns a context for what is expected to succeed.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func outcome(e *providers.Error) string {
	if e == nil {
		return "accepted"
	}
	return e.Outcome.String()
}

func testRender(t *testing.T, s Suite) {
	b := newBench(t, s)
	sending := b.sending(t, 1, false)
	again := &bench{suite: s, server: b.server, provider: s.New(t, b.server.URL())}
	if other := again.sending(t, 1, false); !bytes.Equal(other.Payload, sending.Payload) {
		t.Errorf("the same request rendered to other bytes:\n%s\n---\n%s", sending.Payload, other.Payload)
	}
	if other := b.sending(t, 2, false); bytes.Equal(other.Payload, sending.Payload) {
		t.Error("two requests rendered to the same bytes")
	}
	receipt, e := b.send(patient(t), t, sending)
	if e != nil {
		t.Fatalf("send: %v (%s)", e, e.Detail)
	}
	accepted := b.server.Accepted()
	if len(accepted) != 1 {
		t.Fatalf("%d messages accepted, want 1", len(accepted))
	}
	if !bytes.Equal(accepted[0].Body, sending.Payload) {
		t.Errorf("the wire has other bytes than Render:\n%q\n---\n%q", accepted[0].Body, sending.Payload)
	}
	if accepted[0].Reference != sending.Key {
		t.Errorf("reference %q, want the key %q", accepted[0].Reference, sending.Key)
	}
	if receipt.ProviderMessageID == "" || receipt.Status < 200 || receipt.Status > 299 {
		t.Errorf("receipt %+v has no id or no status", receipt)
	}
}

func testStatuses(t *testing.T, s Suite) {
	b := newBench(t, s)
	sending := b.sending(t, 1, false)
	for status := 200; status <= 599; status++ {
		b.server.Answer(status)
		want := "accepted"
		if status > 299 {
			want = s.Definite[status].String()
		}
		receipt, e := b.send(patient(t), t, sending)
		if got := outcome(e); got != want {
			t.Errorf("status %d is %s, want %s", status, got, want)
		}
		if e != nil && e.Status != status || e == nil && receipt.Status != status {
			t.Errorf("status %d is reported as %+v, %v", status, receipt, e)
		}
	}
}

func testFaults(t *testing.T, s Suite) {
	tests := []struct {
		name     string
		fault    Fault
		large    bool
		want     string
		accepted int
	}{
		{"no fault", NoFault, false, "accepted", 1},
		{"reply lost", LoseReply, false, "in_doubt", 1},
		{"connection dropped behind the reply", DropAfterReply, false, "accepted", 1},
		{"connection reset in mid-upload", CutUpload, true, "deferred", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s)
			// A first message warms a kept connection up: on a fresh one
			// net/http would not repeat a request in any case.
			if _, e := b.send(patient(t), t, b.sending(t, 1, false)); e != nil {
				t.Fatalf("first send: %v", e)
			}
			b.server.Break(tt.fault)
			_, e := b.send(patient(t), t, b.sending(t, 2, tt.large))
			b.server.Close()
			if got := outcome(e); got != tt.want {
				t.Errorf("outcome %s, want %s: %v", got, tt.want, e)
			}
			if got := len(b.server.Accepted()) - 1; got != tt.accepted {
				t.Errorf("%d accepted, want %d", got, tt.accepted)
			}
			if got := b.server.Requests(); got != 2 {
				t.Errorf("%d requests on the wire, want 2", got)
			}
		})
	}
}

func testLateReply(t *testing.T, s Suite) {
	b := newBench(t, s)
	released := make(chan struct{})
	b.server.Hold(released)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.server.WaitAccepted(patient(t), 1); err != nil {
			t.Errorf("nothing accepted: %v", err)
		}
		close(released)
	})
	_, e := b.send(patient(t), t, b.sending(t, 1, false))
	wg.Wait()
	if e != nil {
		t.Errorf("the late reply was not taken: %v", e)
	}
}

func testUnreachable(t *testing.T, s Suite) {
	b := newBench(t, s)
	sending := b.sending(t, 1, false)
	b.server.Close()
	_, e := b.send(patient(t), t, sending)
	if outcome(e) != "deferred" || e.Code != providers.CodeNotConnected {
		t.Errorf("outcome %v, want deferred %s", e, providers.CodeNotConnected)
	}
}

func testConcurrency(t *testing.T, s Suite) {
	n := concurrentSends
	if testing.Short() {
		n = concurrentSendsShort
	}
	b := newBench(t, s)
	ctx := patient(t)
	sendings := make([]providers.Sending, n)
	for i := range sendings {
		sendings[i] = b.sending(t, i, false)
	}
	var wg sync.WaitGroup
	for _, sending := range sendings {
		wg.Go(func() {
			if _, err := b.provider.Send(ctx, sending); err != nil {
				t.Errorf("send %s: %v", sending.Key, err)
			}
		})
	}
	wg.Wait()
	var got, want []string
	for _, a := range b.server.Accepted() {
		got = append(got, a.Reference+" "+string(a.Body))
	}
	for _, sending := range sendings {
		want = append(want, sending.Key+" "+string(sending.Payload))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d messages accepted, want exactly the %d that were sent", len(got), len(want))
	}
}
