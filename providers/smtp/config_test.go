package smtp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/smtp"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	tests := []struct {
		url                        string
		host, port, user, password string
		tls                        smtp.TLSMode
	}{
		{"smtp://relay.example.com", "relay.example.com", "587", "", "", smtp.TLSRequired},
		{"smtp://u:p%40ss@relay.example.com:25", "relay.example.com", "25", "u", "p@ss", smtp.TLSRequired},
		{"smtp://u%40x:p@relay.example.com/?tls=none", "relay.example.com", "587", "u@x", "p", smtp.TLSNone},
		{"smtp://relay.example.com?tls=implicit", "relay.example.com", "465", "", "", smtp.TLSImplicit},
		{"smtps://relay.example.com", "relay.example.com", "465", "", "", smtp.TLSImplicit},
		{"smtp://localhost:1025", "localhost", "1025", "", "", smtp.TLSNone},
		{"smtp://127.0.0.1:1025", "127.0.0.1", "1025", "", "", smtp.TLSNone},
		{"smtp://[::1]:1025", "::1", "1025", "", "", smtp.TLSNone},
		{"smtp://localhost?tls=required", "localhost", "587", "", "", smtp.TLSRequired},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			t.Parallel()
			c, err := smtp.ParseURL(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			if c.Host != tt.host || c.Port != tt.port || c.Username != tt.user || c.Password != tt.password || c.TLS != tt.tls {
				t.Errorf("got %s, user %q", c, c.Username)
			}
			if c.FinalTimeout != 10*time.Minute {
				t.Errorf("final time-out %v, want 10 minutes", c.FinalTimeout)
			}
		})
	}
}

func TestParseURLErrorsKeepThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "relay.example.com:25", "smtp:relay.example.com", "smtp://", "smtp://u:hunter2@",
		"http://u:hunter2@relay.example.com", "smtp://u:hunter2@relay.example.com?tls=maybe",
		"smtp://u:hunter2@relay.example.com?TLS=none", "smtp://u:hunter2@relay.example.com/path",
		"smtp://u:hunter2@relay.example.com#x", "smtps://u:hunter2@relay.example.com?tls=none",
		"smtp://u:hunter2/x@relay.example.com", "smtp://u:hunter2%zz@relay.example.com",
		"smtp://u:hunter2@relay.example.com:port", "smtp://:hunter2@relay.example.com",
		"smtp://u:hunter2\n@relay.example.com",
	} {
		c, err := smtp.ParseURL(url)
		if err == nil {
			t.Errorf("%q was taken as %s", url, c)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

func TestConfigPrintsNoPassword(t *testing.T) {
	t.Parallel()
	c, err := smtp.ParseURL("smtp://u:hunter2@relay.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, c); strings.Contains(text, "hunter2") || !strings.Contains(text, "relay.example.com") {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]smtp.Config{
		"no host":           {},
		"negative time-out": {Host: "h", FinalTimeout: -1},
		"unknown mode":      {Host: "h", TLS: "sometimes"},
		"nameless password": {Host: "h", Password: "p"},
	} {
		if _, err := smtp.New(c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
