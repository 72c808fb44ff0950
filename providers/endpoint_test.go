package providers_test

import (
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

func TestBaseURL(t *testing.T) {
	t.Parallel()
	const fallback = "https://api.example.com"
	for configured, want := range map[string]string{
		"":                          fallback,
		"http://127.0.0.1:8080":     "http://127.0.0.1:8080",
		"https://eu.example.com/v3": "https://eu.example.com/v3",
	} {
		got, err := providers.BaseURL(configured, fallback)
		if err != nil || got.String() != want {
			t.Errorf("%q is %v, %v, want %s", configured, got, err, want)
		}
	}
	for _, configured := range []string{
		"api.example.com", "ftp://secret.example.com", "https://", "https://u:secret@example.com",
		"https://example.com?secret", "https://example.com#secret", "https://secret\x7f",
	} {
		_, err := providers.BaseURL(configured, fallback)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want an error that does not quote it", configured, err)
		}
	}
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	if err := providers.CheckSecret("API key", "key-1~!"); err != nil {
		t.Error(err)
	}
	for _, secret := range []string{"", "secret\n", "sec ret", "sécret", "secret\x7f"} {
		err := providers.CheckSecret("API key", secret)
		if err == nil || !strings.Contains(err.Error(), "API key") || strings.Contains(err.Error(), "ret") {
			t.Errorf("%q: %v, want an error that does not quote it", secret, err)
		}
	}
}

// F6: an id that could not be stored is none, and the message is accepted.
func TestMessageID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"": "", "a-b_c@d.example": "a-b_c@d.example", "a\x00b": "", "a\nb": "", "a b": "", "ü": "",
		strings.Repeat("a", 256): strings.Repeat("a", 256), strings.Repeat("a", 257): "",
	} {
		if got := providers.MessageID(id); got != want {
			t.Errorf("%q is stored as %q, want %q", id, got, want)
		}
	}
}
