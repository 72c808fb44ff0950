package smtp_test

import (
	"testing"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// FuzzContent: whatever a sender writes, one mail arrives, byte for byte.
func FuzzContent(f *testing.F) {
	for _, end := range ends {
		f.Add(end + smuggled)
		f.Add("a" + end)
	}
	relay := providertest.NewSMTP(f, providertest.SMTPOptions{})
	p := newProvider(f, relay.URL())
	f.Fuzz(func(t *testing.T, text string) {
		r := providertest.Request(1)
		r.Message.Text = text
		r.Message.Attachments = []providers.Attachment{{Filename: "a.txt", ContentType: "text/plain", Content: []byte(text)}}
		payload, err := p.Render(r)
		if err != nil {
			t.Skip("refused")
		}
		sendsOnly(t, p, relay, providers.Sending{Request: r, Payload: payload})
	})
}
