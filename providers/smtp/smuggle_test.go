package smtp_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// ends are what some server or other has taken for the end of a mail (SMTP
// smuggling: CVE-2023-51764, -51765, -51766), and dots that need stuffing.
var ends = []string{
	"\r\n.\r\n", "\n.\n", "\n.\r\n", "\r\n.\n", "\r.\r", "\r.\n", "\n.\r", "\r\n.\r", "\r.\r\n", "\n\n.\n\n", "\r\n\x00.\r\n", "\r\n.\x00\r\n",
	"\n..\n", "\r\n..\r\n", "\r\n.", "\n.", "\r.", ".\r\n", ".\n", ".", "..", "\r\n.\r\n.\r\n", "\r\n.\r\nQUIT\r\n",
}

const smuggled = "MAIL FROM:<admin@example.com>\r\nRCPT TO:<victim@example.org>\r\nDATA\r\nSubject: smuggled\r\n\r\nhi\r\n.\r\n"

// sendsOnly sends bytes and checks that the relay got one mail of exactly those,
// and was told nothing but one mail's commands.
func sendsOnly(t testing.TB, p providers.Provider, relay *providertest.SMTP, s providers.Sending) {
	t.Helper()
	relay.Forget()
	lines := len(relay.Lines())
	if _, err := p.Send(t.Context(), s); err != nil {
		t.Fatalf("send: %v", err)
	}
	got := relay.Accepted()
	if len(got) != 1 {
		t.Fatalf("%d mails arrived of one", len(got))
	}
	if !bytes.Equal(got[0].Body, s.Payload) {
		t.Fatalf("%d bytes arrived that are not the %d that were sent", len(got[0].Body), len(s.Payload))
	}
	for _, line := range relay.Lines()[lines:] {
		if strings.Contains(line, "victim") {
			t.Fatalf("the relay was told %q", line)
		}
	}
}

// No body and no file ends the mail early, whatever stands where in it, and what
// arrives is what was rendered, byte for byte: dots are stuffed and taken out
// again. Of what is rendered no line ends but with CRLF, so that servers cannot
// disagree.
func TestNothingIsSmuggled(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newProvider(t, relay.URL())
	var texts []string
	for _, end := range ends {
		texts = append(texts, end+smuggled, "a"+end+smuggled, end)
	}
	for _, text := range texts {
		s := sending(t, p, func(r *providers.Request) {
			r.Message.Text, r.Message.HTML = text, text
			r.Message.Attachments = []providers.Attachment{{Filename: "a.txt", ContentType: "text/plain", Content: []byte(text)}}
		})
		if bare := slices.ContainsFunc(slices.Collect(bytes.Lines(s.Payload)), func(line []byte) bool {
			return !bytes.HasSuffix(line, []byte("\r\n")) || bytes.ContainsAny(line[:len(line)-2], "\r\n")
		}); bare {
			t.Errorf("%q is rendered with a bare line end", text)
		}
		sendsOnly(t, p, relay, s)
	}
}

// Where a buffer or a packet ends in such a body makes no difference: the client's
// buffer has 4096 bytes.
func TestNothingIsSmuggledAtAChunksEnd(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTP(t, providertest.SMTPOptions{})
	p := newProvider(t, relay.URL())
	s := sending(t, p)
	header, _, _ := bytes.Cut(s.Payload, []byte("\r\n\r\n"))
	for _, end := range []string{"\r\n.\r\n", "\r\n..\r\n", "\r\n.a"} {
		for at := 4096 - len(end) - 2; at <= 4096+2; at++ {
			fill := at - len(header) - len("\r\n\r\n")
			lines := strings.Repeat(strings.Repeat("x", 62)+"\r\n", fill/64) + strings.Repeat("x", fill%64)
			s.Payload = fmt.Appendf(nil, "%s\r\n\r\n%s%s%s", header, lines, end, smuggled)
			sendsOnly(t, p, relay, s)
		}
	}
}
