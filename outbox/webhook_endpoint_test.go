package outbox_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

// What may be connected to, by the address that a name led to.
func TestWebhookAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"93.184.215.14": true, "8.8.8.8": true, "2606:2800:21f:cb07:6820:80da:af6b:8b2c": true, "2a00:1450:4001:82a::200e": true,
		"172.15.255.255": true, "172.32.0.1": true, "100.63.255.255": true, "100.128.0.1": true, "::ffff:8.8.8.8": true,

		"127.0.0.1": false, "127.255.255.254": false, "::1": false, // loopback
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "fd12:3456::1": false, // private
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, // link-local, metadata
		"fd00:ec2::254": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, // metadata elsewhere
		"100.64.0.1": false, "100.127.255.255": false, // carrier-grade NAT
		"224.0.0.1": false, "239.255.255.250": false, "ff02::1": false, "ff0e::1": false, // multicast
		"0.0.0.0": false, "0.1.2.3": false, "::": false, // unspecified
		"255.255.255.255": false, "240.0.0.1": false, // broadcast, reserved
		"192.0.2.1": false, "198.51.100.1": false, "203.0.113.1": false, "2001:db8::1": false, "3fff::1": false, // documentation
		"198.18.0.1": false, "192.88.99.1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:169.254.169.254": false, "::127.0.0.1": false, // IPv4 in IPv6
		"64:ff9b::7f00:1": false, "64:ff9b::a00:1": false, "64:ff9b:1::1": false, // NAT64
		"2002:7f00:1::": false, "2002:a00:1::1": false, // 6to4
		"2001:0:7f00:1::": false, // Teredo
	} {
		if got := outbox.MayConnect(net.JoinHostPort(address, "443")); got != want {
			t.Errorf("%s: allowed %v, want %v", address, got, want)
		}
	}
	if outbox.MayConnect("nonsense") {
		t.Error("what is no address is connected to")
	}
}

func TestWebhookEndpoints(t *testing.T) {
	t.Parallel()
	strict, err := outbox.NewClient(nil, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	tooLong := "https://example.com/" + strings.Repeat("x", 2048-19)
	for endpoint, want := range map[string]string{
		"":                             "is required",
		"example.com/hooks":            "is not a URL",
		"https://":                     "is not a URL",
		"https:example.com":            "is not a URL",
		"https://exa mple.com/":        "is not a URL",
		"https://example.com/\x01":     "is not a URL",
		"https://example.com:seven/":   "is not a URL",
		"http://example.com/hooks":     "must begin with https://",
		"ftp://example.com/hooks":      "must begin with https://",
		"https://ann:pw@example.com/":  "no user or password",
		"https://ann@example.com/":     "no user or password",
		"https://example.com/#here":    "no fragment",
		"https://localhost/hooks":      "public internet",
		"https://LOCALHOST./hooks":     "public internet",
		"https://db.localhost/hooks":   "public internet",
		"https://127.0.0.1/hooks":      "public internet",
		"https://[::1]:8443/hooks":     "public internet",
		"https://[fe80::1%25eth0]/":    "public internet",
		"https://169.254.169.254/meta": "public internet",
		tooLong:                        "longer than 2048 bytes",
	} {
		_, err := strict.CreateWebhook(context.Background(), uuid.New(), endpoint, outbox.WebhookEvents)
		validation, ok := errors.AsType[*outbox.ValidationError](err)
		if !ok || validation.Fields[0].Field != "endpoint" || !strings.Contains(validation.Fields[0].Message, want) {
			t.Errorf("%s: %v, want %s", endpoint, err, want)
			continue
		}
		if strings.Contains(err.Error(), "example.com/hooks") || strings.Contains(err.Error(), "pw") {
			t.Errorf("the error quotes the URL: %v", err)
		}
	}
}

func TestWebhookEventsAreChecked(t *testing.T) {
	t.Parallel()
	d := newTelling(t)
	for want, events := range map[string][]outbox.WebhookEvent{
		"events: must name":            {},
		"events[1]: is not one of":     {"email.sent", "email.send"},
		"events[2]: is named twice":    {"email.sent", "email.opened", "email.sent"},
		"events[0]: is not one of ema": {""},
	} {
		_, err := d.client.CreateWebhook(context.Background(), d.org, "http://127.0.0.1:1/", events)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", events, err, want)
		}
	}
}
