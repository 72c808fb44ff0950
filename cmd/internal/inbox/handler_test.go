package inbox

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// richMessage has every kind of part, and things that a page must not let
// through.
const richMessage = "From: =?utf-8?q?Gr=C3=B6=C3=9Fe?= <app@example.com>\r\n" +
	"To: you@example.com, Other <other@example.com>\r\n" +
	"Cc: cc@example.com\r\n" +
	"Reply-To: support@example.com\r\n" +
	"Subject: =?utf-8?q?Your_order_=E2=9C=93_<script>alert(1)</script>?=\r\n" +
	"Message-ID: <1@example.com>\r\n" +
	"X-Twice: one\r\n" +
	"X-Twice: two,\r\n folded\r\n" +
	"MIME-Version: 1.0\r\n" +
	"Content-Type: multipart/mixed; boundary=mixed\r\n" +
	"\r\n--mixed\r\n" +
	"Content-Type: multipart/related; boundary=related\r\n" +
	"\r\n--related\r\n" +
	"Content-Type: multipart/alternative; boundary=alternative\r\n" +
	"\r\n--alternative\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\n\r\nPlain <text>\r\n" +
	"--alternative\r\n" +
	"Content-Type: text/html; charset=utf-8\r\n\r\n" +
	"<!DOCTYPE html><html><head><title>x</title></head><body>" +
	"<img src=\"cid:logo@x\"><img src='cid:logo@x2'><a href=\"https://example.com/confirm\">Confirm</a>" +
	"<script>alert(2)</script></body></html>\r\n" +
	"--alternative--\r\n" +
	"--related\r\n" +
	"Content-Type: image/png; name=logo.png\r\nContent-Disposition: inline; filename=logo.png\r\n" +
	"Content-ID: <logo@x>\r\nContent-Transfer-Encoding: base64\r\n\r\niVBORw0KGgo=\r\n" +
	"--related--\r\n" +
	"--mixed\r\n" +
	"Content-Type: text/html\r\n" +
	"Content-Disposition: attachment; filename=\"../../etc/cr\xc3\xb6n.html\"\r\n" +
	"Content-Transfer-Encoding: base64\r\n\r\nPGI+aGk8L2I+\r\n" +
	"--mixed--\r\n"

// stored sends richMessage and returns the inbox with its id.
func stored(t *testing.T) (*running, string) {
	t.Helper()
	r := start(t, Options{})
	r.send(t, "app@example.com", []string{"you@example.com"}, richMessage)
	return r, r.only(t).ID
}

func TestAPIMessage(t *testing.T) {
	t.Parallel()
	r, id := stored(t)
	resp, body := r.get(t, "/api/messages/"+id)
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	var m apiMessageAnswer
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]any{
		"Größe <app@example.com>":                              m.From,
		"[you@example.com Other <other@example.com>]":          m.To,
		"[cc@example.com]":                                     m.CC,
		"[support@example.com]":                                m.ReplyTo,
		"Your order ✓ <script>alert(1)</script>":               m.Subject,
		"<1@example.com>":                                      m.MessageID,
		"{app@example.com [you@example.com]}":                  m.Envelope,
		"[one two, folded]":                                    m.Headers["X-Twice"],
		"Plain <text>":                                         m.Text,
		fmt.Sprintf("%d", len(richMessage)):                    m.Size,
		"../../etc/crön.html text/html attachment 9":           describe(m, 0),
		"logo.png image/png inline 8":                          describe(m, 1),
		fmt.Sprintf("/messages/%s/attachments/1 logo@x", m.ID): m.Attachments[1].URL + " " + m.Attachments[1].ContentID,
		"": m.ParseError,
	} {
		if fmt.Sprint(got) != name {
			t.Errorf("got %v, want %s", got, name)
		}
	}
	if !strings.Contains(m.HTML, `src="cid:logo@x"`) {
		t.Errorf("the API's HTML is not the one that was sent: %s", m.HTML)
	}
}

func describe(m apiMessageAnswer, index int) string {
	a := m.Attachments[index]
	return fmt.Sprintf("%s %s %s %d", a.Filename, a.ContentType, a.Disposition, a.Size)
}

func TestAPIListAndDelete(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for i := range 3 {
		r.send(t, "a@example.com", []string{"b@example.com"}, fmt.Sprintf("Subject: %d\r\n\r\n", i))
	}
	var list apiListAnswer
	_, body := r.get(t, "/api/messages?limit=2")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	if list.Total != 3 || len(list.Messages) != 2 || list.Messages[0].Subject != "2" {
		t.Errorf("got %+v", list)
	}
	if resp, _ := r.get(t, "/api/messages?limit=many"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a limit that is no number: %s", resp.Status)
	}
	if status := r.do(t, http.MethodDelete, "/api/messages", ""); status != http.StatusNoContent {
		t.Errorf("DELETE: %d", status)
	}
	if _, body := r.get(t, "/api/messages"); !strings.Contains(body, `"messages": []`) {
		t.Errorf("after DELETE: %s", body)
	}
}

func TestOtherSitesCannotEmptyTheInbox(t *testing.T) {
	t.Parallel()
	r, _ := stored(t)
	for method, path := range map[string]string{http.MethodDelete: "/api/messages", http.MethodPost: "/clear"} {
		if status := r.do(t, method, path, "https://evil.example"); status != http.StatusForbidden {
			t.Errorf("%s %s from another site: %d", method, path, status)
		}
	}
	r.only(t)
	if status := r.do(t, http.MethodPost, "/clear", r.web.URL); status != http.StatusOK {
		t.Errorf("POST /clear from its own page: %d", status)
	}
	if n := len(r.store.list()); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// do makes a request as a browser does from a page of that origin.
func (r *running) do(t *testing.T, method, path, origin string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.web.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestPagesEscapeWhatTheMessageSays(t *testing.T) {
	t.Parallel()
	r, id := stored(t)
	for _, path := range []string{
		"/", "/messages/" + id, "/messages/" + id + "?view=text",
		"/messages/" + id + "?view=headers", "/messages/" + id + "?view=source",
	} {
		resp, body := r.get(t, path)
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
		if strings.Contains(body, "<script>") || !strings.Contains(body, "&lt;") {
			t.Errorf("%s is not escaped:\n%s", path, body)
		}
		if got := resp.Header.Get("Content-Security-Policy"); got != pagePolicy {
			t.Errorf("%s: policy %q", path, got)
		}
	}
}

func TestFramedHTML(t *testing.T) {
	t.Parallel()
	r, id := stored(t)
	resp, body := r.get(t, "/messages/"+id+"/body")
	for header, want := range map[string]string{
		"Content-Security-Policy":      bodyPolicy,
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		if got := resp.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	if !strings.HasPrefix(body, "<!DOCTYPE html><html><head>"+baseTag) {
		t.Errorf("no base tag after the doctype: %s", body)
	}
	if !strings.Contains(body, `<img src="data:image/png;base64,iVBORw0KGgo=">`) {
		t.Errorf("the picture is not in place: %s", body)
	}
	if !strings.Contains(body, `<img src='cid:logo@x2'>`) {
		t.Errorf("a picture that is not there was replaced: %s", body)
	}
	for _, allowed := range []string{"script-src", "allow-scripts", "allow-same-origin", "http:", "https:"} {
		if strings.Contains(bodyPolicy, allowed) {
			t.Errorf("the frame's policy has %s", allowed)
		}
	}
}

func TestAttachmentIsSavedNotShown(t *testing.T) {
	t.Parallel()
	r, id := stored(t)
	resp, body := r.get(t, "/messages/"+id+"/attachments/0")
	if body != "<b>hi</b>" {
		t.Errorf("content %q", body)
	}
	disposition, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition"))
	if err != nil || disposition != "attachment" || params["filename"] != "crön.html" {
		t.Errorf("Content-Disposition %q", resp.Header.Get("Content-Disposition"))
	}
	if got := resp.Header.Get("Content-Type"); got != "application/octet-stream" {
		t.Errorf("Content-Type %q", got)
	}
	resp, body = r.get(t, "/messages/"+id+"/download")
	if body != richMessage || !strings.Contains(resp.Header.Get("Content-Disposition"), id+".eml") {
		t.Errorf("download: %v", resp.Header)
	}
}

func TestSafeFilename(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"report.pdf":          "report.pdf",
		`C:\temp\report.pdf`:  "report.pdf",
		"../../.bashrc":       "bashrc",
		"a\r\nX-Evil: 1":      "aX-Evil: 1",
		"gpj.\u202eexe":       "gpj.exe",
		"..":                  "attachment-3.bin",
		"":                    "attachment-3.bin",
		"\xff\xfe":            "attachment-3.bin",
		"größe \"quoted\".md": "größe \"quoted\".md",
	} {
		if got := safeFilename(attachment{Filename: name, Index: 2}); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestUnknownThings(t *testing.T) {
	t.Parallel()
	r, id := stored(t)
	for _, path := range []string{
		"/nothing", "/messages/unknown", "/messages/unknown/body",
		"/messages/..%2f..%2fetc%2fpasswd", "/messages/" + id + "/attachments/9",
		"/messages/" + id + "/attachments/-1", "/api/messages/unknown", "/api/messages/unknown/source",
	} {
		resp, body := r.get(t, path)
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
		if isJSON := json.Valid([]byte(body)); isJSON != strings.HasPrefix(path, "/api/") {
			t.Errorf("%s: body %q", path, body)
		}
	}
}

func TestMalformedMessageIsShownAllTheSame(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	r.send(t, "a@example.com", []string{"b@example.com"},
		"Subject: broken\r\nFrom: not an address\r\nContent-Type: multipart/mixed\r\n\r\nbody\r\n")
	m := r.only(t)
	if m.From != "not an address" || !slices.Equal(m.To, []string{"b@example.com"}) {
		t.Errorf("got %+v", m)
	}
	for _, path := range []string{"/messages/" + m.ID, "/messages/" + m.ID + "?view=source", "/api/messages/" + m.ID} {
		if resp, body := r.get(t, path); resp.StatusCode != http.StatusOK || !strings.Contains(body, "broken") {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}

func TestEmptyInboxSaysHowToSend(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	_, body := r.get(t, "/")
	if !strings.Contains(body, "No messages yet") || !strings.Contains(body, "smtp://"+r.Inbox.smtpAddr()) {
		t.Errorf("got %s", body)
	}
	for path, kind := range map[string]string{"/style.css": "text/css", "/list.js": "text/javascript"} {
		resp, _ := r.get(t, path)
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(got, kind) {
			t.Errorf("%s: %s, %q", path, resp.Status, got)
		}
	}
}
