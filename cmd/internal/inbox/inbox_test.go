package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// running is an inbox with both of its doors open.
type running struct {
	*Inbox
	smtpAddr string
	web      *httptest.Server
	close    func()
}

func start(t *testing.T, opts Options) *running {
	t.Helper()
	return serve(t, open(t, opts))
}

func open(t *testing.T, opts Options) *Inbox {
	t.Helper()
	in, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func serve(t *testing.T, in *Inbox) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- in.ServeSMTP(l) }()
	r := &running{Inbox: in, smtpAddr: l.Addr().String(), web: httptest.NewServer(in.Handler())}
	r.close = sync.OnceFunc(func() {
		r.web.Close()
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Errorf("ServeSMTP: %v", err)
		}
	})
	t.Cleanup(r.close)
	return r
}

func (r *running) send(t *testing.T, from string, to []string, body string) {
	t.Helper()
	if err := r.trySend(from, to, strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
}

// trySend returns the server's reply as an error unless it is 250.
func (r *running) trySend(from string, to []string, body io.Reader) error {
	client, err := smtp.Dial(r.smtpAddr)
	if err != nil {
		return err
	}
	err = client.SendMail(from, to, body)
	return errors.Join(err, client.Close())
}

func (r *running) only(t *testing.T) summary {
	t.Helper()
	list := r.store.list()
	if len(list) != 1 {
		t.Fatalf("%d messages, want 1", len(list))
	}
	return list[0]
}

// get returns an answer with its body.
func (r *running) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Get(r.web.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

const plainMessage = "From: Ada <ada@example.com>\r\nTo: Bob <bob@example.com>\r\nSubject: Hello\r\n\r\nHi\r\n"

func TestMessageIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{"memory": {}, "folder": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, opts)
			sent := plainMessage + ".leading dot\r\n\xff\xfe not UTF-8\r\n"
			r.send(t, "bounces@example.com", []string{"bob@example.com", "blind@example.com"}, sent)

			got := r.only(t)
			if got.From != "Ada <ada@example.com>" || got.Subject != "Hello" || got.Size != len(sent) {
				t.Errorf("summary: %+v", got)
			}
			if want := "{bounces@example.com [bob@example.com blind@example.com]}"; fmt.Sprint(got.Envelope) != want {
				t.Errorf("envelope %v, want %s", got.Envelope, want)
			}
			if _, source := r.get(t, "/api/messages/"+got.ID+"/source"); source != sent {
				t.Errorf("source %q, want %q", source, sent)
			}
		})
	}
}

func TestAnyPasswordWillDo(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	auth := sasl.NewPlainClient("", "anybody", "anything")
	client, err := smtp.Dial(r.smtpAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Auth(auth); err != nil {
		t.Fatal(err)
	}
	// SMTPUTF8, on the same connection.
	from, to := "größe@exämple.com", "用户@例子.广告"
	if err := client.Mail(from, &smtp.MailOptions{UTF8: true}); err != nil {
		t.Fatal(err)
	}
	if err := client.Rcpt(to, nil); err != nil {
		t.Fatal(err)
	}
	data, err := client.Data()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(data, "From: "+from+"\r\nTo: "+to+"\r\nSubject: Größe\r\n\r\nx\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}
	got := r.only(t)
	if got.From != from || got.To[0] != to || got.Subject != "Größe" || got.Envelope.To[0] != to {
		t.Errorf("got %+v", got)
	}
}

func TestMessagesSurviveARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, Options{Dir: dir})
	for i := range 3 {
		first.send(t, "a@example.com", []string{"b@example.com"}, fmt.Sprintf("Subject: %d\r\n\r\n", i))
	}
	before := first.store.list()
	first.close()
	// What a crash in the middle of a message leaves behind.
	if err := os.WriteFile(filepath.Join(dir, "x.eml.tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}

	second := start(t, Options{Dir: dir})
	after := second.store.list()
	if fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the restart:\n%v\nbefore:\n%v", after, before)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 3 {
		t.Errorf("files: %v", files)
	}
}

func TestForeignFileIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine.eml"), []byte(plainMessage), 0o600); err != nil {
		t.Fatal(err)
	}
	got := start(t, Options{Dir: dir}).only(t)
	if got.ID != "mine" || got.Subject != "Hello" || got.ReceivedAt.IsZero() {
		t.Errorf("got %+v", got)
	}
}

func TestOldestMessagesGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, Options{Dir: dir, MaxMessages: 2})
	for i := range 5 {
		r.send(t, "a@example.com", []string{"b@example.com"}, fmt.Sprintf("Subject: %d\r\n\r\n", i))
	}
	list := r.store.list()
	if len(list) != 2 || list[0].Subject != "4" || list[1].Subject != "3" {
		t.Errorf("got %v", list)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Errorf("%d files, want 2", len(files))
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	s, err := openStore("", 100)
	if err != nil {
		t.Fatal(err)
	}
	s.maxBytes = 4 * len(plainMessage)
	for range 6 {
		if err := s.add(envelope{}, []byte(plainMessage)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.list()); n != 4 || s.bytes > s.maxBytes {
		t.Errorf("%d messages, %d bytes", n, s.bytes)
	}
}

func TestTooLargeMessageIsRefused(t *testing.T) {
	t.Parallel()
	in := open(t, Options{})
	in.smtp.MaxMessageBytes = 1000
	r := serve(t, in)
	r.send(t, "a@example.com", []string{"b@example.com"}, plainMessage)
	err := r.trySend("a@example.com", []string{"b@example.com"}, strings.NewReader(plainMessage+strings.Repeat("x\r\n", 400)))
	reply, ok := errors.AsType[*smtp.SMTPError](err)
	if !ok || reply.Code != 552 {
		t.Errorf("got %v, want a 552 reply", err)
	}
	r.only(t)
}

func TestExtensions(t *testing.T) {
	t.Parallel()
	client, err := smtp.Dial(start(t, Options{}).smtpAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, extension := range []string{"8BITMIME", "SMTPUTF8", "CHUNKING", "AUTH"} {
		if ok, _ := client.Extension(extension); !ok {
			t.Errorf("%s is not offered", extension)
		}
	}
	if size, _ := client.MaxMessageSize(); size != 40<<20 {
		t.Errorf("SIZE %d, want 40 MB", size)
	}
}

func TestUnstorableMessageIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	r := start(t, Options{Dir: dir})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	err := r.trySend("a@example.com", []string{"b@example.com"}, strings.NewReader(plainMessage))
	reply, ok := errors.AsType[*smtp.SMTPError](err)
	if !ok || !reply.Temporary() {
		t.Errorf("got %v, want a temporary failure", err)
	}
}

func TestConcurrentSenders(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Dir: t.TempDir()})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := r.trySend("a@example.com", []string{"b@example.com"}, strings.NewReader(plainMessage))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list := r.store.list()
	if len(list) != 20 {
		t.Fatalf("%d messages, want 20", len(list))
	}
	for i := range list[1:] {
		if list[i].ID <= list[i+1].ID {
			t.Errorf("not newest first: %s, %s", list[i].ID, list[i+1].ID)
		}
	}
}

func TestCloseBeforeServe(t *testing.T) {
	t.Parallel()
	in, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Close(), in.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.ServeSMTP(l); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(plainMessage))
	f.Add([]byte(richMessage))
	f.Add([]byte("Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n"))
	f.Add([]byte(" folded\n:\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := parseMessage(summarise("id", label{}, raw), raw)
		m.framedHTML()
		for _, a := range m.Attachments {
			name := safeFilename(a)
			if name == "" || strings.ContainsAny(name, "/\\\r\n\x00") || name[0] == '.' {
				t.Errorf("unsafe name %q", name)
			}
		}
		line := append([]byte(envelopeHeader+"{}\r\n"), raw...)
		if _, rest := splitFile(line); !bytes.Equal(rest, raw) {
			t.Errorf("stored %q, read %q", raw, rest)
		}
	})
}
