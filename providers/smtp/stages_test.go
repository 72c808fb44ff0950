package smtp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
	"github.com/outboxd/outboxd/providers/smtp"
)

// sending renders a message to three recipients.
func sending(t testing.TB, p providers.Provider, edit ...func(*providers.Request)) providers.Sending {
	t.Helper()
	r := providertest.Request(1)
	r.Message.Cc = []providers.Address{{Email: "cc@example.org"}}
	r.Message.Bcc = []providers.Address{{Email: "bcc@example.org"}}
	for _, f := range edit {
		f(&r)
	}
	payload, err := p.Render(r)
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	return providers.Sending{Request: r, Payload: payload}
}

// failure sends and returns the error, which must be of the contract's type.
func failure(t testing.TB, p providers.Provider, s providers.Sending) *providers.Error {
	t.Helper()
	_, err := p.Send(t.Context(), s)
	e, ok := errors.AsType[*providers.Error](err)
	if !ok {
		t.Fatalf("got %v (%T), want a *providers.Error", err, err)
	}
	return e
}

// at reacts at one stage.
func at(stage providertest.Stage, r providertest.Reaction) func(providertest.SMTPEvent) providertest.Reaction {
	return func(e providertest.SMTPEvent) providertest.Reaction {
		if e.Stage == stage {
			return r
		}
		return providertest.Reaction{}
	}
}

func TestEveryStageIsDefinite(t *testing.T) {
	t.Parallel()
	permanent := map[providertest.Stage]providers.Outcome{
		// Refusals of us, not of the message.
		providertest.AtGreeting: providers.Misconfigured,
		providertest.AtEHLO:     providers.Misconfigured,
		providertest.AtAUTH:     providers.Misconfigured,
		providertest.AtMAIL:     providers.Rejected,
		providertest.AtRCPT:     providers.Rejected,
		providertest.AtDATA:     providers.Rejected,
	}
	for stage, refused := range permanent {
		reactions := map[string]struct {
			reaction providertest.Reaction
			want     providers.Outcome
		}{
			"451":         {providertest.Reply(451, "4.3.0 later"), providers.Deferred},
			"421":         {providertest.Reply(421, "4.3.2 going down").Then(providertest.Reset()), providers.Deferred},
			"554":         {providertest.Reply(554, "5.0.0 no"), refused},
			"530":         {providertest.Reply(530, "5.7.0 authentication required"), providers.Misconfigured},
			"closed":      {providertest.Reset(), providers.Deferred},
			"nonsense":    {providertest.Raw("nonsense\r\n"), providers.Deferred},
			"odd success": {providertest.Reply(299, "unexpected"), oddReply(stage)},
		}
		for name, tt := range reactions {
			t.Run(string(stage)+" "+name, func(t *testing.T) {
				t.Parallel()
				relay := providertest.NewSMTP(t, providertest.SMTPOptions{Username: "user", Password: secret})
				relay.Respond(at(stage, tt.reaction))
				if tt.want < 0 {
					t.Skip("a success at this stage")
				}
				p := newProvider(t, relay.URL())
				e := failure(t, p, sending(t, p))
				relay.Close()
				if e.Outcome != tt.want {
					t.Errorf("got %v (%s), want %v", e, e.Detail, tt.want)
				}
				if n := len(relay.Accepted()); n != 0 {
					t.Errorf("%d accepted, want none", n)
				}
			})
		}
	}
}

// oddReply is the outcome of a 2xx that is not the expected code, or less than
// zero where any 2xx will do.
func oddReply(stage providertest.Stage) providers.Outcome {
	if stage == providertest.AtRCPT {
		return -1
	}
	return providers.Deferred
}

func TestOneRefusedRecipientFailsTheMessage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		code int
		want providers.Outcome
	}{
		{550, providers.Rejected},
		{450, providers.Deferred},
		{452, providers.Deferred},
		{552, providers.Deferred}, // too many recipients: RFC 5321, 4.5.3.1.10
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.code), func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
			relay.Respond(func(e providertest.SMTPEvent) providertest.Reaction {
				if e.Stage == providertest.AtRCPT && e.Recipient == 1 {
					return providertest.Reply(tt.code, "5.1.1 <cc@example.org> is unknown")
				}
				return providertest.Reaction{}
			})
			p := newProvider(t, relay.URL())
			e := failure(t, p, sending(t, p))
			relay.Close()
			if e.Outcome != tt.want || e.Status != tt.code || e.Code != "5.1.1" {
				t.Errorf("got %+v, want %v %d", e, tt.want, tt.code)
			}
			if !strings.Contains(e.Error(), "RCPT 2 of 3") {
				t.Errorf("%q does not say which recipient", e.Error())
			}
			if strings.Contains(e.Error(), "cc@") || !strings.Contains(e.Detail, "cc@") {
				t.Errorf("the address belongs to the detail only: %q, %q", e.Error(), e.Detail)
			}
			if len(relay.Accepted()) != 0 || slices.Contains(relay.Lines(), "DATA") {
				t.Error("it went on to DATA")
			}
		})
	}
}

func TestAfterTheDot(t *testing.T) {
	t.Parallel()
	accept := providertest.Accept()
	tests := []struct {
		name     string
		reaction providertest.Reaction
		want     string
	}{
		{"250 and reset (F5)", accept.Then(providertest.Reply(250, "2.0.0 ok")).Then(providertest.Reset()), "accepted"},
		{"another 2xx (F3)", accept.Then(providertest.Reply(251, "2.0.0 ok")), "accepted"},
		{"250 without text", accept.Then(providertest.Reply(250, "")), "accepted"},
		{"reset (F4)", accept.Then(providertest.Reset()), "in_doubt"},
		{"nonsense", accept.Then(providertest.Raw("nonsense\r\n")), "in_doubt"},
		{"half a reply", accept.Then(providertest.Raw("25")), "in_doubt"},
		{"354", accept.Then(providertest.Reply(354, "more")), "in_doubt"},
		{"421", providertest.Reply(421, "4.3.2 going down").Then(providertest.Reset()), "deferred"},
		{"451", providertest.Reply(451, "4.3.0 later"), "deferred"},
		{"552", providertest.Reply(552, "5.3.4 too large"), "rejected"},
		{"554 is not taken for success (F2)", providertest.Reply(554, "5.7.1 spam"), "rejected"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
			relay.Respond(at(providertest.AtDot, tt.reaction))
			p := newProvider(t, relay.URL())
			got := "accepted"
			receipt, err := p.Send(t.Context(), sending(t, p))
			if err != nil {
				got = providers.AsError(err).Outcome.String()
			} else if receipt.ProviderMessageID != "<0198c0de-0000-7000-8000-000000000001@example.com>" {
				t.Errorf("id %q, want our Message-ID", receipt.ProviderMessageID)
			}
			if got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}

func TestQuitMayFail(t *testing.T) {
	t.Parallel()
	for name, reaction := range map[string]providertest.Reaction{
		"reset": providertest.Reset(), "hang (F5)": providertest.Hang(), "421": providertest.Reply(421, "no"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
			relay.Respond(at(providertest.AtQUIT, reaction))
			p := newProvider(t, relay.URL())
			if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
				t.Errorf("got %v, want accepted", err)
			}
		})
	}
}

// F20: what is broken off is neither completed by QUIT nor accepted.
func TestNoCommandFollowsBrokenContent(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newProvider(t, relay.URL())
	s := sending(t, p)
	errFence := errors.New("no longer ours")
	s.Confirm = func() error { return errFence }
	if e := failure(t, p, s); !errors.Is(e, errFence) || e.Code != providers.CodeNotConfirmed {
		t.Errorf("got %v, want the refusal", e)
	}
	relay.Close()
	if lines := relay.Lines(); lines[len(lines)-1] != "DATA" {
		t.Errorf("%q came after DATA", lines[len(lines)-1])
	}
	if n := len(relay.Accepted()); n != 0 {
		t.Errorf("%d accepted, want none", n)
	}
}

// F24: dots, and everything else, arrive byte for byte.
func TestContentIsByteIdentical(t *testing.T) {
	t.Parallel()
	texts := []string{
		".", "..", ".\r\n", "\r\n.\r\n", "a\r\n.\r\nQUIT\r\n", ".a\r\n..b\r\n...", "\r\n\r\n",
		strings.Repeat(".\r\n", 5000), strings.Repeat("x", 5000) + "\r\n.",
	}
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newProvider(t, relay.URL())
	for i, text := range texts {
		s := sending(t, p, func(r *providers.Request) { r.Message.Text = text })
		if _, err := p.Send(t.Context(), s); err != nil {
			t.Fatalf("text %d: %v", i, err)
		}
		if got := relay.Accepted()[i].Body; !bytes.Equal(got, s.Payload) {
			t.Errorf("text %d arrived as\n%q\nwant\n%q", i, got, s.Payload)
		}
	}
	// The bytes of Render go out as they are, whoever made them.
	s := sending(t, p)
	s.Payload = []byte("Subject: x\r\n\r\n.\r\n..\r\n.x\r\n")
	if _, err := p.Send(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := relay.Accepted()[len(texts)].Body; !bytes.Equal(got, s.Payload) {
		t.Errorf("arrived as %q, want %q", got, s.Payload)
	}
}

func TestEnvelope(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newProvider(t, relay.URL())
	if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
		t.Fatal(err)
	}
	got := relay.Accepted()[0]
	want := []string{"to-1@example.org", "cc@example.org", "bcc@example.org"}
	if got.From != "sender@example.com" || !slices.Equal(got.To, want) {
		t.Errorf("envelope %s %v, want sender@example.com %v", got.From, got.To, want)
	}
	if bytes.Contains(got.Body, []byte("bcc@example.org")) {
		t.Error("the blind copy shows in the content")
	}
}

func TestAnnouncedLimits(t *testing.T) {
	t.Parallel()
	utf8 := func(r *providers.Request) { r.Message.To[0].Email = "jürgen@example.org" }
	tests := []struct {
		name       string
		extensions []string
		edit       func(*providers.Request)
		want       string
		mail       string
	}{
		{"too large", []string{"SIZE 100"}, nil, "too_large", ""},
		{"no fixed limit", []string{"SIZE 0"}, nil, "", "SIZE="},
		{"SIZE not offered", []string{"8BITMIME"}, nil, "", "MAIL FROM:<sender@example.com>"},
		{"row 5: SMTPUTF8 not offered", []string{"8BITMIME"}, utf8, "utf8_address", ""},
		{"row 5: SMTPUTF8 without 8BITMIME", []string{"SMTPUTF8"}, utf8, "eight_bit_content", ""},
		{"8BITMIME not offered and not needed", []string{"SIZE 0"}, nil, "", "MAIL FROM:<sender@example.com>"},
		{"row 5: SMTPUTF8 offered and needed", []string{"SMTPUTF8", "8BITMIME"}, utf8, "", "SMTPUTF8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTP(t, providertest.SMTPOptions{Extensions: tt.extensions})
			p := newProvider(t, relay.URL())
			edit := tt.edit
			if edit == nil {
				edit = func(*providers.Request) {}
			}
			_, err := p.Send(t.Context(), sending(t, p, edit))
			if tt.want != "" {
				if e := providers.AsError(err); e.Outcome != providers.Rejected || e.Code != tt.want || relay.Requests() != 0 {
					t.Errorf("got %v after %d MAIL, want rejected %s before it", err, relay.Requests(), tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(relay.Lines(), func(l string) bool { return strings.HasPrefix(l, "MAIL") })
			if line := relay.Lines()[i]; !strings.Contains(line, tt.mail) {
				t.Errorf("%q, want %q in it", line, tt.mail)
			}
		})
	}
	t.Run("SMTPUTF8 only where needed", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
		p := newProvider(t, relay.URL())
		if _, err := p.Send(t.Context(), sending(t, p)); err != nil {
			t.Fatal(err)
		}
		for _, line := range relay.Lines() {
			if strings.Contains(line, "SMTPUTF8") {
				t.Errorf("%q asks for SMTPUTF8", line)
			}
		}
	})
}

func TestPrepareHandsNothingOver(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	config, err := smtp.ParseURL(relay.URL())
	if err != nil {
		t.Fatal(err)
	}
	p, err := smtp.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s := sending(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	dropped, err := p.Prepare(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := dropped.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	kept, err := p.Prepare(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // the context of Prepare is not the conversation's
	if n := len(relay.Accepted()); n != 0 {
		t.Errorf("%d accepted before Send, want none", n)
	}
	if _, err := kept.Send(t.Context()); err != nil {
		t.Errorf("send: %v", err)
	}
	if err := kept.Close(); err != nil {
		t.Errorf("close after send: %v", err)
	}
	relay.Close()
	if n := len(relay.Accepted()); n != 1 {
		t.Errorf("%d accepted, want 1", n)
	}
}
