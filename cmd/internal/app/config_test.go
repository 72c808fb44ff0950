package app

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/providers/providertest"
)

func variableNames(config reflect.Type, prefix string) []string {
	var names []string
	for f := range config.Fields() {
		if name := f.Tag.Get("env"); name != "" {
			names = append(names, prefix+name)
		}
		if f.Type.Kind() == reflect.Struct {
			names = append(names, variableNames(f.Type, f.Tag.Get("envPrefix"))...)
		}
	}
	return names
}

// The help text and the README name exactly the variables that are read.
func TestHelpNamesEveryVariable(t *testing.T) {
	t.Parallel()
	var documented []string
	for _, match := range regexp.MustCompile(`(?m)^  ([A-Z][A-Z_]+) `).FindAllStringSubmatch(variables, -1) {
		documented = append(documented, match[1])
	}
	read := variableNames(reflect.TypeFor[Config](), "")
	slices.Sort(documented)
	slices.Sort(read)
	if !slices.Equal(documented, read) {
		t.Errorf("documented: %v\nread: %v", documented, read)
	}
}

func TestLoadConfigDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := LoadConfig([]string{"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=sendgrid,smtp"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.SendTimeout.D() != 30*time.Second || cfg.IdempotencyTTL.D() != 7*24*time.Hour || cfg.Concurrency != 50 ||
		cfg.Addr != ":8080" || !slices.Equal(cfg.Providers, []string{"sendgrid", "smtp"}) {
		t.Errorf("config = %+v", cfg)
	}
}

// Every provider can be configured, and says what it lacks.
func TestConfiguredProviders(t *testing.T) {
	t.Parallel()
	const database = "DATABASE_URL=postgres://localhost/db"
	made := func(environ ...string) ([]string, error) {
		cfg, err := LoadConfig(append(environ, database))
		if err != nil {
			t.Fatal(err)
		}
		list, err := cfg.newProviders()
		var names []string
		for _, p := range list {
			names = append(names, p.Name())
		}
		return names, err
	}
	names := []string{"postmark", "mailgun", "sendgrid", "resend", "smtp"}
	all := "OUTBOXD_PROVIDERS=" + strings.Join(names, ",")
	got, err := made(
		all, "POSTMARK_SERVER_TOKEN=t", "MAILGUN_API_KEY=k", "MAILGUN_DOMAIN=mg.example.com",
		"MAILGUN_BASE_URL=https://api.eu.mailgun.net", "MAILGUN_SANDBOX=true", "SENDGRID_API_KEY=k",
		"SENDGRID_SANDBOX=true", "RESEND_API_KEY=k", "SMTP_URL=smtp://localhost",
	)
	if err != nil || !slices.Equal(got, names) {
		t.Errorf("made %v, %v, want %v", got, err, names)
	}
	if got, err = made("OUTBOXD_PROVIDERS=postmark", "POSTMARK_SANDBOX=true"); err != nil || len(got) != 1 {
		t.Errorf("Postmark's sandbox without a token: %v, %v", got, err)
	}
	_, err = made(all)
	for _, want := range []string{
		"POSTMARK_SERVER_TOKEN", "MAILGUN_API_KEY", "MAILGUN_DOMAIN", "SENDGRID_API_KEY", "RESEND_API_KEY", "SMTP_URL",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s: %v", want, err)
		}
	}
}

// The sandbox of each provider reaches its adapter: it is seen in the bytes.
func TestSandboxIsConfigured(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]string{"sendgrid": `"sandbox_mode":{"enable":true}`, "mailgun": "o:testmode"} {
		for _, on := range []string{"true", "false"} {
			cfg, err := LoadConfig([]string{
				"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=" + name,
				"SENDGRID_API_KEY=k", "SENDGRID_SANDBOX=" + on,
				"MAILGUN_API_KEY=k", "MAILGUN_DOMAIN=mg.example.com", "MAILGUN_SANDBOX=" + on,
			})
			if err != nil {
				t.Fatal(err)
			}
			list, err := cfg.newProviders()
			if err != nil {
				t.Fatal(err)
			}
			payload, err := list[0].Render(providertest.Request(1))
			if got := strings.Contains(string(payload), mark); err != nil || got != (on == "true") {
				t.Errorf("%s with %s: sandbox %v, %v", name, on, got, err)
			}
		}
	}
}

// All errors at once, by the variable's name, without a secret.
func TestLoadConfigErrors(t *testing.T) {
	t.Parallel()
	_, err := LoadConfig([]string{
		"DATABASE_URL=postgres://user:hunter2@localhost:nonsense/db",
		"OUTBOXD_PROVIDERS=smtp,pigeon,smtp",
		"OUTBOXD_LOG_FORMAT=xml",
		"OUTBOXD_CONCURRENCY=-1",
		"OUTBOXD_IDEMPOTENCY_TTL=1h",
		"OUTBOXD_SEND_TIMEOUT=-1s",
		"OUTBOXD_PUBLIC_URL=http://mail.example.com",
		"OUTBOXD_SUPPRESS_ON=bounce",
		"OUTBOXD_ENCRYPTION_KEYS=k1:aHVudGVyMg==",
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"DATABASE_URL", `no provider "pigeon"`, `"smtp" is named twice`, "OUTBOXD_LOG_FORMAT",
		"OUTBOXD_CONCURRENCY", "OUTBOXD_IDEMPOTENCY_TTL", "OUTBOXD_SEND_TIMEOUT",
		"OUTBOXD_PUBLIC_URL", "OUTBOXD_SUPPRESS_ON", "OUTBOXD_ENCRYPTION_KEYS: key 1 is not the base64 of 32 bytes",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "aHVudGVyMg") {
		t.Errorf("the error shows the password:\n%v", err)
	}
}

func TestSuppressOnConfig(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "hard_bounce complaint unsubscribe", "off": "", "complaint,unsubscribe": "complaint unsubscribe",
	} {
		environ := []string{"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=smtp"}
		if text != "" {
			environ = append(environ, "OUTBOXD_SUPPRESS_ON="+text)
		}
		cfg, err := LoadConfig(environ)
		if err != nil {
			t.Fatal(err)
		}
		reasons, err := cfg.suppressOn()
		if got := strings.Trim(fmt.Sprint(reasons), "[]"); got != want || reasons == nil || err != nil {
			t.Errorf("%q: %q, error %v; want %q", text, got, err, want)
		}
	}
}

func TestPublicURL(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"": true, "https://mail.example.com": true, "https://example.com/outbox/": true, "https://mail.example.com:8443": true,
		"http://localhost:8080": true, "http://127.0.0.1:8080": true, "http://[::1]:8080": true,
		"http://mail.example.com": false, "http://127.0.0.1.example.com": false, "mail.example.com": false, "/outbox": false,
		"https://user:password@example.com": false, "https://example.com/?a=b": false, "https://example.com/#a": false, "ftp://localhost": false,
	} {
		if err := checkPublicURL(text); (err == nil) != ok {
			t.Errorf("%q: error %v", text, err)
		} else if err != nil && strings.Contains(err.Error(), "password") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestSESConfig(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DATABASE_URL=postgres://localhost/db", "OUTBOXD_PROVIDERS=ses", "AWS_REGION=eu-west-1",
		"SES_CONFIGURATION_SET=events", "SES_ENDPOINT_URL=http://127.0.0.1:1",
	}
	cfg, err := LoadConfig(environ)
	if err != nil {
		t.Fatal(err)
	}
	if want := (SESConfig{Region: "eu-west-1", EndpointURL: "http://127.0.0.1:1", ConfigurationSet: "events"}); !reflect.DeepEqual(cfg.SES, want) {
		t.Errorf("config %+v, want %+v", cfg.SES, want)
	}
	made, err := cfg.newProviders()
	if err != nil || len(made) != 1 || made[0].Name() != "ses" {
		t.Errorf("providers %v, %v, want ses", made, err)
	}
	cfg.SES.EndpointURL = "127.0.0.1:1"
	if _, err := cfg.newProviders(); err == nil || !strings.Contains(err.Error(), "provider ses") {
		t.Errorf("an endpoint that is no URL: %v", err)
	}
}

func TestLoadConfigNamesTheVariableOfABadValue(t *testing.T) {
	t.Parallel()
	_, err := LoadConfig([]string{"OUTBOXD_SEND_TIMEOUT=soon", "OUTBOXD_SMTP_FINAL_TIMEOUT=10", "OUTBOXD_CONCURRENCY=many"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"OUTBOXD_SEND_TIMEOUT: ", "OUTBOXD_SMTP_FINAL_TIMEOUT: ", "OUTBOXD_CONCURRENCY: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0,
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.D() != want {
			t.Errorf("%q = %v, error %v; want %v", text, d.D(), err, want)
		}
	}
	for _, text := range []string{"", "d", "-1d", "1.5d", "soon", "7"} {
		if err := new(Duration).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for a duration", text)
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rate{"100/s": 100, "600/m": 10, "7200/h": 2} {
		var r Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%q = %v a second, error %v; want %v", text, r, err, want)
		}
	}
	for _, text := range []string{"", "100", "0/s", "-1/s", "1.5/s", "100/d", "/s"} {
		if err := new(Rate).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for a rate", text)
		}
	}
}

// Each provider that can be configured can be given a rate.
func TestEveryProviderHasARate(t *testing.T) {
	t.Parallel()
	rates := new(Config).rates()
	for _, name := range knownProviders() {
		if _, ok := rates[name]; !ok {
			t.Errorf("%s has none", name)
		}
	}
}
