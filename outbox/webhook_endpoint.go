package outbox

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxEndpoint bounds the URL of a webhook, in bytes.
	maxEndpoint = 2048
	// dialTimeout bounds the connection to an endpoint, a part of
	// webhookTimeout.
	dialTimeout = 5 * time.Second
	// maxReplyHeader bounds the headers of an endpoint's answer, in bytes.
	maxReplyHeader = 16 << 10
)

// endpoints says where webhooks may be. Their URLs are written by people who
// have an API key and no more, and are fetched from inside our network, where
// other services trust their neighbours.
type endpoints struct {
	// private allows addresses that are not public, and http.
	private bool
}

// validate checks the form of a URL. What its name resolves to is checked when
// it is connected to, each time: today's answer says nothing about tomorrow's.
func (e endpoints) validate(errs *fieldErrors, endpoint string) {
	if message := e.refuse(endpoint); message != "" {
		errs.add("endpoint", "%s", message)
	}
}

// refuse says what is wrong with a URL. It does not quote it: people put secrets
// into URLs.
func (e endpoints) refuse(endpoint string) string {
	if endpoint == "" {
		return "is required"
	}
	if len(endpoint) > maxEndpoint {
		return "is longer than 2048 bytes"
	}
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return "is not a URL such as https://example.com/path"
	case u.Scheme != "https" && (u.Scheme != "http" || !e.private):
		return "must begin with https://"
	case u.User != nil:
		return "must have no user or password in it: messages are signed"
	case strings.Contains(endpoint, "#"):
		return "must have no fragment"
	case !e.private && isPrivateName(u.Hostname()):
		return "must be on the public internet"
	}
	return ""
}

// isPrivateName tells the names that are not worth resolving.
func isPrivateName(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !isPublic(addr)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// errPrivateAddress means that an endpoint's name leads into a private network.
var errPrivateAddress = errors.New("the endpoint's address is not on the public internet")

// control looks at the address that is about to be connected to, after its name
// was resolved: what was looked up before could be another one by now.
func (e endpoints) control(_, address string, _ syscall.RawConn) error {
	if e.private {
		return nil
	}
	target, err := netip.ParseAddrPort(address)
	if err != nil || !isPublic(target.Addr()) {
		return errPrivateAddress
	}
	return nil
}

// Of IPv6 only 2000::/3 is given out for the public internet, which leaves out
// the forms of IPv4 addresses in 0::/96, ::ffff:0:0:0/96 and 64:ff9b::/32, and
// what is local (https://www.iana.org/assignments/ipv6-address-space).
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic are networks that are not the public internet, as
// https://www.iana.org/assignments/iana-ipv4-special-registry and
// https://www.iana.org/assignments/iana-ipv6-special-registry say, beyond those
// that netip knows.
var notPublic = prefixes(
	"0.0.0.0/8",       // this network
	"100.64.0.0/10",   // carrier-grade NAT; metadata of Alibaba Cloud
	"192.0.0.0/24",    // protocol assignments; metadata of Oracle Cloud
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"240.0.0.0/4",     // reserved, and broadcast
	// Azure's metadata of a machine, at a public address:
	// https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
	"168.63.129.16/32",
	"2001::/23",     // protocol assignments, Teredo
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4
	"3fff::/20",     // documentation
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// isPublic reports whether an address is one of the public internet's.
func isPublic(addr netip.Addr) bool {
	addr = addr.Unmap()
	switch {
	case !addr.IsGlobalUnicast(), addr.IsPrivate(), addr.Zone() != "":
		return false
	case addr.Is6() && !publicIPv6.Contains(addr):
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// client returns a client for requests to endpoints. It follows no redirect,
// which would lead past what was checked, and takes no proxy from the
// environment, which would be connected to in the endpoint's place.
func (e endpoints) client() *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: dialTimeout, Control: e.control}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    dialTimeout,
			Protocols:              &protocols,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxReplyHeader,
			MaxIdleConns:           webhookConcurrency,
			MaxIdleConnsPerHost:    endpointShare,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}
