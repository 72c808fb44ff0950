package providertest

import (
	"cmp"
	"fmt"
	"mime"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxd/outboxd/providers"
)

// hardInput is a message that breaks senders, and what has to come of it.
type hardInput struct {
	name string
	edit func(*providers.Message)
	must verdict
	// refusals are the codes with which the message may be refused.
	refusals []string
}

// verdict is what the contract says of a message.
type verdict int

const (
	// arrive: every provider carries it, as it is.
	arrive verdict = iota
	// fail: no provider may be given it.
	fail
	// either: it arrives as it is, or it is refused with one of the codes,
	// because services differ. There is no third way (F23).
	either
)

// testMessages goes through all messages that break senders. What is rendered
// has to be accepted by the service and to arrive as it was given: a mail never
// lacks something in silence.
func testMessages(t *testing.T, s Suite) {
	for _, in := range hardInputs() {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s)
			r := s.request(1)
			in.edit(&r.Message)
			in.refusals = slices.Concat(in.refusals, s.Refuses)
			payload, err := b.provider.Render(r)
			if err != nil {
				in.checkRefusal(t, err)
				return
			}
			if in.must == fail {
				t.Fatalf("rendered, want a refusal with one of %q", in.refusals)
			}
			b.checkArrival(t, providers.Sending{Request: r, Payload: payload}, in)
		})
	}
	t.Run("row 17: too many recipients, and too large", func(t *testing.T) {
		t.Parallel()
		testLimits(t, newBench(t, s))
	})
}

func (in hardInput) checkRefusal(t *testing.T, err error) {
	t.Helper()
	e := providers.AsError(err)
	switch {
	case e.Outcome != providers.Rejected || e.Code == "":
		t.Errorf("got %v, want a rejection with a code", err)
	case in.must == arrive && !slices.Contains(in.refusals, e.Code):
		t.Errorf("refused with %s (%s), want it to be carried", e.Code, e.Detail)
	case !slices.Contains(in.refusals, e.Code):
		t.Errorf("refused with %s (%s), want one of %q", e.Code, e.Detail, in.refusals)
	}
}

// checkArrival sends and compares what arrived with what was given.
func (b *bench) checkArrival(t *testing.T, s providers.Sending, in hardInput) {
	t.Helper()
	if _, err := b.provider.Send(patient(t), s); err != nil {
		if e := providers.AsError(err); e.Status == 0 {
			in.checkRefusal(t, err) // by what the relay announced
			return
		}
		t.Fatalf("the service refused what was rendered: %v (%s)", err, providers.AsError(err).Detail)
	}
	got, readable, err := received(b.server)
	if !readable {
		t.Skip("the dialect has no Read: what arrived is not checked")
	}
	if err != nil {
		t.Fatalf("what arrived is broken: %v", err)
	}
	if diff := gocmp.Diff(normal(s.Message), normal(got), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("it arrived otherwise than it was given (-given +arrived):\n%s", diff)
	}
}

// received returns the one message that arrived at server.
func received(server Server) (m providers.Message, readable bool, err error) {
	switch p := server.(type) {
	case *HTTP:
		request := p.Seen()[0]
		s := p.service(request.Path)
		if s == nil || s.Read == nil {
			return m, false, nil
		}
		m, err = s.Read(request)
		return m, true, err
	case *SMTP:
		a := p.Accepted()[0]
		m, err = ReadMIME(a.Body, a.To)
		return m, true, err
	}
	return m, false, nil
}

// normal takes out of m what may differ between the message that was given and
// the one that arrived without anybody missing it.
func normal(m providers.Message) providers.Message {
	m.Tags = nil
	m.Text, m.HTML = lines(m.Text), lines(m.HTML)
	m.Headers = slices.Clone(m.Headers)
	for i, h := range m.Headers {
		m.Headers[i].Name = textproto.CanonicalMIMEHeaderKey(h.Name)
	}
	slices.SortStableFunc(m.Headers, func(a, b providers.Header) int { return cmp.Compare(a.Name, b.Name) })
	m.Attachments = slices.Clone(m.Attachments)
	for i, a := range m.Attachments {
		if m.HTML == "" {
			m.Attachments[i].ContentID = "" // nothing can refer to it
		}
		if m.HTML != "" && a.ContentID != "" || a.Filename == "" {
			m.Attachments[i].Filename = a.ContentID // the name is not shown, and some services take the id for it
		}
		m.Attachments[i].ContentType = fileType(a.ContentType)
	}
	slices.SortStableFunc(m.Attachments, func(a, b providers.Attachment) int { return cmp.Compare(a.Filename, b.Filename) })
	return m
}

// lines ends every line of a body the same way: a message has no line end but
// CRLF, and one at its end.
func lines(body string) string {
	body = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body)
	return strings.TrimSuffix(body, "\n")
}

// fileType leaves of a file's type what says what the file is: not its name,
// which is elsewhere, nor the charset that readers assume. A message in a file
// has no type of its own where types forbid the encoding (RFC 2046, 5.2).
func fileType(contentType string) string {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || strings.HasPrefix(mediaType, "message/") {
		return "application/octet-stream"
	}
	delete(params, "name")
	if charset := strings.ToLower(params["charset"]); charset == "utf-8" || charset == "us-ascii" {
		delete(params, "charset")
	}
	return mime.FormatMediaType(mediaType, params)
}

// testLimits goes one beyond the limits that the adapter says it has.
func testLimits(t *testing.T, b *bench) {
	p := b.provider
	limits := p.Capabilities()
	if limits.MaxRecipients > 0 {
		r := b.suite.request(1)
		for i := range limits.MaxRecipients {
			r.Message.To = append(r.Message.To, providers.Address{Email: fmt.Sprintf("more-%d@example.org", i)})
		}
		if _, err := p.Render(r); err == nil || providers.AsError(err).Code != "too_many_recipients" {
			t.Errorf("%d recipients: %v, want too_many_recipients", len(r.Message.To), err)
		}
		r.Message.To = r.Message.To[1:]
		if _, err := p.Render(r); err != nil {
			t.Errorf("%d recipients: %v, want none refused", len(r.Message.To), err)
		}
	}
	if limits.MaxBytes > 0 {
		r := b.suite.request(1)
		// Three quarters of the limit: it is over the limit in base64.
		r.Message.Attachments = []providers.Attachment{{Filename: "large.txt", Content: make([]byte, limits.MaxBytes/4*3)}}
		if _, err := p.Render(r); err == nil || providers.AsError(err).Code != "too_large" {
			t.Errorf("a file of %d bytes: %v, want too_large", limits.MaxBytes/4*3, err)
		}
	}
}
