package providertest

import (
	"net/http"
	"testing"
)

// runHTTP checks what only HTTP can get wrong.
func runHTTP(t *testing.T, s Suite) {
	probe := s.Start(t)
	if _, ok := probe.(*HTTP); !ok {
		t.Skip("the adapter does not speak HTTP")
	}
	for _, tt := range httpFaults {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s)
			server, _ := b.server.(*HTTP)
			if _, e := b.send(patient(t), t, b.sending(t, 1, false)); e != nil {
				t.Fatalf("first send: %v", e)
			}
			server.Receive(tt.receive)
			server.Respond(tt.respond)
			_, e := b.send(patient(t), t, b.sending(t, 2, tt.large))
			server.Close()
			if got := outcome(e); got != tt.want && (tt.or == "" || got != tt.or) {
				t.Errorf("outcome %s, want %s: %v", got, tt.want, e)
			}
			if got := len(server.Accepted()) - 1; got != tt.accepted {
				t.Errorf("%d accepted, want %d", got, tt.accepted)
			}
			checkWarm(t, server)
		})
	}
}

// checkWarm checks that there were two requests, on one connection: that is
// where net/http would have repeated the second.
func checkWarm(t *testing.T, server *HTTP) {
	t.Helper()
	seen := server.Seen()
	if len(seen) != 2 {
		t.Fatalf("%d requests on the wire, want 2", len(seen))
	}
	if seen[0].Connection != seen[1].Connection {
		t.Errorf("the second request was on a new connection: the case was not hit")
	}
}

// always returns r for every request.
func always(r Reaction) func(Seen) Reaction { return func(Seen) Reaction { return r } }

// redirect sends the client back to where it came from.
func redirect(r Seen) Reaction {
	return Reply(http.StatusTemporaryRedirect, "").With("Location", r.Path)
}

var httpFaults = []struct {
	name     string
	large    bool
	receive  func(Seen) Intake
	respond  func(Seen) Reaction
	want     string
	or       string // where both are honest and the network decides
	accepted int
}{
	{
		name:    "2xx with a garbage body (F6)",
		respond: always(Accept().Then(Reply(202, "\x00<not json>"))),
		want:    "accepted", accepted: 1,
	},
	{
		name:    "2xx with an empty body (F6)",
		respond: always(Accept().Then(Raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))),
		want:    "accepted", accepted: 1,
	},
	{
		name:    "2xx with a truncated body (F6)",
		respond: always(Accept().Then(Raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"id\":"))),
		want:    "accepted", accepted: 1,
	},
	{
		name:    "truncated status line",
		respond: always(Accept().Then(Raw("HTTP/1.1 2"))),
		want:    "in_doubt", accepted: 1,
	},
	{
		name:    "garbage instead of a status line",
		respond: always(Accept().Then(Raw("250 this is not HTTP\r\n"))),
		want:    "in_doubt", accepted: 1,
	},
	{
		name:    "307 is not followed (F19)",
		respond: redirect,
		want:    "in_doubt",
	},
	{
		name:    "reset before the body is read",
		receive: func(Seen) Intake { return ReadThen(0, Reset()) },
		want:    "in_doubt", or: "deferred",
	},
	{
		name:    "accepted, and a 500 says otherwise",
		respond: always(Accept().Then(Reply(500, ""))),
		want:    "in_doubt", accepted: 1,
	},
	{
		name:  "413 while uploading",
		large: true,
		receive: func(Seen) Intake {
			return ReadThen(512, Reply(http.StatusRequestEntityTooLarge, ""))
		},
		want: "rejected",
	},
}
