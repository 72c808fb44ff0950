package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/outboxd/outboxd/providers"
)

// TLSMode says how the connection is encrypted.
type TLSMode string

const (
	// TLSRequired upgrades with STARTTLS and refuses a server without it.
	TLSRequired TLSMode = "required"
	// TLSImplicit speaks TLS from the first byte (RFC 8314), usually port 465.
	TLSImplicit TLSMode = "implicit"
	// TLSNone sends everything, the password too, in the clear.
	TLSNone TLSMode = "none"
)

// DefaultFinalTimeout is how long the reply to the final dot may take:
// RFC 5321, 4.5.3.2.6. A shorter wait makes doubts, and copies of mails, out
// of slow servers.
const DefaultFinalTimeout = 10 * time.Minute

// Config describes a relay.
type Config struct {
	// Host and Port name the relay. Port is 587 by default, 465 with
	// [TLSImplicit].
	Host string
	Port string

	// Username and Password are for AUTH; without Username there is none.
	Username string
	Password string

	// TLS is [TLSRequired] by default, and [TLSNone] when the host is the
	// loopback interface.
	TLS TLSMode

	// TLSConfig is used for TLS where it is set, for example for a private
	// certificate authority. Its ServerName is Host unless it says otherwise.
	TLSConfig *tls.Config

	// Dial connects to the relay, by default over TCP within 30 seconds.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// LocalName is what EHLO says. By default it is the machine's name if
	// that is fully qualified and "localhost" otherwise.
	LocalName string

	// FinalTimeout is how long the reply to the final dot may take, zero
	// means [DefaultFinalTimeout].
	FinalTimeout time.Duration
}

// String describes the relay without the password.
func (c Config) String() string {
	user := ""
	if c.Username != "" {
		user = c.Username + "@"
	}
	return "smtp://" + user + net.JoinHostPort(c.Host, c.Port) + "?tls=" + string(c.TLS)
}

// GoString keeps the password out of %#v.
func (c Config) GoString() string { return "smtp.Config{" + c.String() + "}" }

// ParseURL reads a relay from
//
//	smtp://user:password@host:587?tls=required|none|implicit
//
// where everything but the host may be missing. smtps:// means tls=implicit.
// Errors do not quote the URL, because the password is in it.
func ParseURL(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The cause quotes what it stumbled over, which a password with a
		// special character is.
		return Config{}, errors.New("SMTP URL: not a URL; special characters in the user name and the password have to be percent-encoded")
	}
	c := Config{Host: u.Hostname(), Port: u.Port(), TLS: TLSMode(u.Query().Get("tls"))}
	if u.User != nil {
		c.Username = u.User.Username()
		c.Password, _ = u.User.Password()
	}
	if u.Opaque != "" || (u.Path != "" && u.Path != "/") || u.Fragment != "" {
		return Config{}, errors.New("SMTP URL: nothing but ?tls= may follow the host and port")
	}
	for name := range u.Query() {
		if name != "tls" {
			return Config{}, errors.New("SMTP URL: the only parameter is tls")
		}
	}
	switch u.Scheme {
	case "smtp":
	case "smtps":
		if c.TLS != "" && c.TLS != TLSImplicit {
			return Config{}, errors.New("SMTP URL: smtps:// means tls=implicit")
		}
		c.TLS = TLSImplicit
	default:
		return Config{}, errors.New("SMTP URL: it starts with smtp:// or smtps://")
	}
	return c.withDefaults()
}

// withDefaults fills in what is missing and checks the whole.
func (c Config) withDefaults() (Config, error) {
	if c.Host == "" {
		return Config{}, errors.New("SMTP: no host")
	}
	if c.TLS == "" {
		c.TLS = TLSRequired
		if isLoopback(c.Host) {
			c.TLS = TLSNone
		}
	}
	switch c.TLS {
	case TLSRequired, TLSImplicit, TLSNone:
	default:
		return Config{}, fmt.Errorf("SMTP: tls is %s, %s or %s", TLSRequired, TLSImplicit, TLSNone)
	}
	if c.Port == "" {
		c.Port = "587"
		if c.TLS == TLSImplicit {
			c.Port = "465"
		}
	}
	if c.Username == "" && c.Password != "" {
		return Config{}, errors.New("SMTP: a password without a user name")
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if c.LocalName == "" {
		c.LocalName = localName()
	}
	if c.FinalTimeout == 0 {
		c.FinalTimeout = DefaultFinalTimeout
	}
	if c.FinalTimeout < 0 {
		return Config{}, errors.New("SMTP: the final time-out is negative")
	}
	return c, nil
}

func (c Config) tlsConfig() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLSConfig != nil {
		config = c.TLSConfig.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = c.Host
	}
	return config
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// localName returns a name for EHLO. Relays that check it refuse a bare host
// name, and take "localhost" from an authenticated client.
func localName() string {
	name, err := os.Hostname()
	if err != nil || !strings.Contains(name, ".") || !providers.IsASCII(name) {
		return "localhost"
	}
	return name
}
