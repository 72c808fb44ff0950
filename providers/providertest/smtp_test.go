package providertest_test

import (
	"bytes"
	"errors"
	"net"
	"net/smtp"
	"net/textproto"
	"slices"
	"testing"

	"github.com/outboxd/outboxd/providers/providertest"
)

// The relay is checked with the standard library's client, which shares no
// code with it nor with the adapter.
func TestSMTPWithAnotherClient(t *testing.T) {
	t.Parallel()
	p, err := providertest.StartSMTP("127.0.0.1:0", providertest.SMTPOptions{Username: "user", Password: "password"})
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("Message-ID: <key-1@example.com>\r\n\r\n.\r\n..\r\n.x\r\n\r\n")
	auth := smtp.PlainAuth("", "user", "password", host)
	if err := smtp.SendMail(p.Addr(), auth, "s@example.com", []string{"a@example.org", "b@example.org"}, message); err != nil {
		t.Fatal(err)
	}
	p.Close()
	got := p.Accepted()
	if len(got) != 1 || !bytes.Equal(got[0].Body, message) || got[0].Reference != "key-1" {
		t.Fatalf("accepted %+v, want the message", got)
	}
	if got[0].From != "s@example.com" || !slices.Equal(got[0].To, []string{"a@example.org", "b@example.org"}) {
		t.Errorf("envelope %s %v", got[0].From, got[0].To)
	}
}

func TestSMTPRefusesAWrongPassword(t *testing.T) {
	t.Parallel()
	p := providertest.NewSMTP(t, providertest.SMTPOptions{Username: "user", Password: "password"})
	host, _, err := net.SplitHostPort(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	auth := smtp.PlainAuth("", "user", "wrong", host)
	err = smtp.SendMail(p.Addr(), auth, "s@example.com", []string{"a@example.org"}, []byte("\r\n"))
	if reply, ok := errors.AsType[*textproto.Error](err); !ok || reply.Code != 535 {
		t.Errorf("got %v, want 535", err)
	}
	if err := smtp.SendMail(p.Addr(), nil, "s@example.com", []string{"a@example.org"}, []byte("\r\n")); err == nil {
		t.Error("taken without authentication")
	}
}
