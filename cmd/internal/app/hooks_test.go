package app

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers"
	"github.com/outboxd/outboxd/providers/providertest"
)

// hooksOf returns the hooks of an environment.
func hooksOf(t *testing.T, environ ...string) (map[string]providers.Hook, error) {
	t.Helper()
	cfg, err := LoadConfig(append(environ, "DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=smtp"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg.hooks()
}

// Each hook is made when its secret is set, whatever is sent through.
func TestHooks(t *testing.T) {
	t.Parallel()
	webhooks, err := providertest.NewSendGridWebhooks()
	if err != nil {
		t.Fatal(err)
	}
	key, err := webhooks.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	secret := providertest.NewResendWebhooks().Secret
	for want, environ := range map[string][]string{
		"":         {"RESEND_WEBHOOK_SECRET=", "POSTMARK_WEBHOOK_PASSWORD=", "SES_SNS_TOPIC_ARN="}, // as compose files set them
		"sendgrid": {"SENDGRID_WEBHOOK_PUBLIC_KEY=" + key + "," + key},
		"resend":   {"RESEND_WEBHOOK_SECRET=" + secret + ", " + secret},
		"postmark": {"POSTMARK_WEBHOOK_USER=u", "POSTMARK_WEBHOOK_PASSWORD=0123456789abcdef"},
		"mailgun":  {"MAILGUN_WEBHOOK_SIGNING_KEY=a,b"},
		"ses":      {"SES_SNS_TOPIC_ARN=arn:aws:sns:eu-west-1:123456789012:a,arn:aws:sns:eu-west-1:123456789012:b"},
	} {
		made, err := hooksOf(t, environ...)
		if got := strings.Join(slices.Sorted(maps.Keys(made)), " "); got != want || err != nil {
			t.Errorf("hooks %q, %v, want %q", got, err, want)
		}
	}
}

// A secret that cannot be one is an error by the variable's name, all at once
// and none quoted.
func TestHooksErrors(t *testing.T) {
	t.Parallel()
	_, err := hooksOf(
		t, "SENDGRID_WEBHOOK_PUBLIC_KEY=hunter2", "RESEND_WEBHOOK_SECRET=hunter2", "POSTMARK_WEBHOOK_USER=u",
		"POSTMARK_WEBHOOK_PASSWORD=hunter2", "MAILGUN_WEBHOOK_SIGNING_KEY=a,hunter2\x01", "SES_SNS_TOPIC_ARN=hunter2",
	)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"SENDGRID_WEBHOOK_PUBLIC_KEY", "RESEND_WEBHOOK_SECRET", "POSTMARK_WEBHOOK_PASSWORD", "MAILGUN_WEBHOOK_SIGNING_KEY", "SES_SNS_TOPIC_ARN",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows a secret:\n%v", err)
	}
	const password = "POSTMARK_WEBHOOK_PASSWORD=0123456789abcdef"
	for _, environ := range [][]string{
		{"POSTMARK_WEBHOOK_USER=u"},
		{password},
		{"POSTMARK_WEBHOOK_USER=u,v", password},
		{"POSTMARK_WEBHOOK_USER=u", password + ","},
		// A comma in a password would make two short ones of it.
		{"POSTMARK_WEBHOOK_USER=u", "POSTMARK_WEBHOOK_PASSWORD=0123456789,abcdef"},
	} {
		if made, err := hooksOf(t, environ...); err == nil || len(made) > 0 {
			t.Errorf("%q: %v, %v", environ, made, err)
		}
	}
}

// While Postmark's password is changed, both are good; and each user has its own.
func TestPostmarkHookPairs(t *testing.T) {
	t.Parallel()
	const old, next = "old-0123456789abcdef", "new-0123456789abcdef"
	for users, good := range map[string][]string{
		"u":   {"u " + old, "u " + next},
		"u,v": {"u " + old, "v " + next},
	} {
		made, err := hooksOf(t, "POSTMARK_WEBHOOK_USER="+users, "POSTMARK_WEBHOOK_PASSWORD="+old+","+next)
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range []string{"u " + old, "u " + next, "v " + old, "v " + next} {
			user, password, _ := strings.Cut(pair, " ")
			r := http.Request{Header: http.Header{}}
			r.SetBasicAuth(user, password)
			_, err := made["postmark"].ParseEvents(t.Context(), r.Header, []byte("{}"), time.Now())
			if slices.Contains(good, pair) != (err == nil) {
				t.Errorf("users %s: %s: %v", users, pair, err)
			}
		}
	}
}
