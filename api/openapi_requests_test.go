package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

// timeMember is a time in an example. They are moved to where they are taken.
var timeMember = regexp.MustCompile(`"(scheduled_at|expires_at)": ?"[^"]*"`)

func inTime(body string) string {
	return timeMember.ReplaceAllStringFunc(body, func(member string) string {
		name, ahead := "scheduled_at", time.Hour
		if strings.HasPrefix(member, `"expires_at"`) {
			name, ahead = "expires_at", 2*time.Hour
		}
		return fmt.Sprintf(`"%s":"%s"`, name, time.Now().Add(ahead).UTC().Format(time.RFC3339))
	})
}

// bodies are the examples of a request, by name.
func (d described) bodies(t *testing.T) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	examples := d.node.at("requestBody", "content", "application/json", "examples")
	for name := range examples {
		body, err := json.Marshal(examples.at(name)["value"])
		if err != nil {
			t.Fatal(err)
		}
		bodies[name] = inTime(string(body))
	}
	return bodies
}

// newScheduled stores an email that can be read, rescheduled and canceled.
func (s *service) newScheduled() (id string) {
	s.t.Helper()
	body := inTime(strings.Replace(simple, "{", `{"scheduled_at":"",`, 1))
	sent := s.do("POST", "/emails", body)
	if sent.status != http.StatusAccepted {
		s.t.Fatalf("answer %d %s", sent.status, sent.body)
	}
	return sent.json(s.t)["id"].(string)
}

// newEmailFor stores an email in the state that the operation is for.
func (s *service) newEmailFor(op described) (id string) {
	s.t.Helper()
	id = s.newScheduled()
	var statements []string
	switch {
	case strings.HasSuffix(op.path, "/retry"):
		statements = []string{`UPDATE outbox.emails SET status = 'failed', ended_at = now() WHERE id = $1`}
	case strings.HasSuffix(op.path, "/resolve"):
		statements = []string{
			`UPDATE outbox.emails SET status = 'unknown', attempts = 1 WHERE id = $1`,
			`INSERT INTO outbox.attempts (email_id, number, provider, provider_key, worker, began_at, deadline, in_doubt_at, payload_sha256)
			 VALUES ($1, 1, 'smtp', gen_random_uuid(), 'w', now(), now(), now(), '')`,
		}
	}
	for _, sql := range statements {
		if _, err := s.pool.Exec(context.Background(), sql, id); err != nil {
			s.t.Fatal(err)
		}
	}
	return id
}

// pathFor stores what the operation is for, and returns its path and its id: of
// an email or a webhook.
func (s *service) pathFor(op described) (path, id string) {
	s.t.Helper()
	if strings.HasPrefix(op.path, "/webhooks") {
		s.exec("DELETE FROM outbox.webhooks") // an org has few
		webhook := s.newWebhook()
		return strings.NewReplacer("{id}", webhook, "{event}", s.newMessage(webhook)).Replace(op.path), webhook
	}
	id = s.newEmailFor(op)
	path = strings.NewReplacer("{id}", id, "{provider}", "lab").Replace(op.path)
	if strings.Contains(path, "{address}") {
		if got := s.do("POST", "/suppressions", `{"address":"jane@example.org"}`); got.status != http.StatusOK {
			s.t.Fatalf("answer %d %s", got.status, got.body)
		}
		path = strings.ReplaceAll(path, "{address}", "jane@example.org")
	}
	if strings.Contains(path, "{token}") {
		path = strings.ReplaceAll(path, "{token}", s.unsubscribeToken(id))
	}
	return path, id
}

func TestOpenAPIRequestsAreAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{Scopes: []string{"send", "admin"}})
	for _, op := range openAPIContract(t).operations() {
		for name, body := range op.bodies(t) {
			path, _ := s.pathFor(op)
			if got := s.do(strings.ToUpper(op.method), path, body); got.status >= 300 {
				t.Errorf("%s, example %s: answer %d %s", op, name, got.status, got.body)
			}
		}
	}
}

// What is required, and what may be left out or null, is so in the code.
func TestOpenAPIRequired(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	c := openAPIContract(t)
	schemas := c.document.at("components", "schemas")
	full := described{node: c.document.at("paths", "/emails", "post")}.bodies(t)["full"]
	for schema, inside := range map[string]func(email map[string]any) map[string]any{
		"SendEmail":  func(email map[string]any) map[string]any { return email },
		"Attachment": func(email map[string]any) map[string]any { return email["attachments"].([]any)[1].(map[string]any) },
	} {
		required := schemas.at(schema).strings("required")
		for member := range schemas.at(schema, "properties") {
			for _, change := range []func(map[string]any){
				func(object map[string]any) { delete(object, member) },
				func(object map[string]any) { object[member] = nil },
			} {
				var email map[string]any
				if err := json.Unmarshal([]byte(full), &email); err != nil {
					t.Fatal(err)
				}
				change(inside(email))
				body, err := json.Marshal(email)
				if err != nil {
					t.Fatal(err)
				}
				got := s.do("POST", "/emails", string(body))
				if refused := got.status == http.StatusUnprocessableEntity; refused != slices.Contains(required, member) {
					t.Errorf("%s without %s: answer %d %s", schema, member, got.status, got.body)
				}
			}
		}
	}
}

// Each limit is taken, and one more is not.
func TestOpenAPILimits(t *testing.T) {
	t.Parallel()
	s := newService(t, api.Org{}, api.Key{})
	document := openAPIContract(t).document
	email, file := document.at("components", "schemas", "SendEmail", "properties"), document.at("components", "schemas", "Attachment", "properties")
	number := func(n node, name string) int {
		value, err := strconv.Atoi(fmt.Sprint(n[name]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return value
	}
	list := func(n node) int { return number(n.list("oneOf")[1].(map[string]any), "maxItems") }
	repeat := func(n int, each func(i int) string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = each(i)
		}
		return strings.Join(items, ",")
	}
	address := func(i int) string { return fmt.Sprintf(`"a%d@example.org"`, i) }
	member := func(i int) string { return fmt.Sprintf(`"x%d":"v"`, i) }
	tag := func(i int) string { return fmt.Sprintf(`{"name":"t%d","value":"v"}`, i) }
	attached := func(int) string { return `{"filename":"a","content":""}` }
	xs := func(n int) string { return strings.Repeat("x", n) }

	for _, test := range []struct {
		name  string
		limit int
		body  func(n int) string // in place of members of a simple email
	}{
		{"to", list(email.at("to")), func(n int) string { return `"to":[` + repeat(n, address) + `]` }},
		{"cc", list(email.at("cc")) - 1, func(n int) string { return `"cc":[` + repeat(n, address) + `]` }},
		{"bcc", list(email.at("bcc")) - 1, func(n int) string { return `"bcc":[` + repeat(n, address) + `]` }},
		{"reply_to", list(email.at("reply_to")), func(n int) string { return `"reply_to":[` + repeat(n, address) + `]` }},
		{"subject", number(email.at("subject"), "x-max-bytes"), func(n int) string { return `"subject":"` + xs(n) + `"` }},
		{"headers", number(email.at("headers"), "maxProperties"), func(n int) string { return `"headers":{` + repeat(n, member) + `}` }},
		{"name of a header", number(email.at("headers", "propertyNames"), "maxLength"), func(n int) string { return `"headers":{"` + xs(n) + `":"v"}` }},
		{"header", number(email.at("headers", "additionalProperties"), "maxLength"), func(n int) string { return `"headers":{"x":"` + xs(n) + `"}` }},
		{"metadata", number(email.at("metadata"), "maxProperties"), func(n int) string { return `"metadata":{` + repeat(n, member) + `}` }},
		{"name in metadata", number(email.at("metadata", "propertyNames"), "maxLength"), func(n int) string { return `"metadata":{"` + xs(n) + `":"v"}` }},
		{"value in metadata", number(email.at("metadata", "additionalProperties"), "maxLength"), func(n int) string { return `"metadata":{"x":"` + xs(n) + `"}` }},
		{"tags", number(email.at("tags"), "maxItems"), func(n int) string { return `"tags":[` + repeat(n, tag) + `]` }},
		{"name of a tag", 256, func(n int) string { return `"tags":[{"name":"` + xs(n) + `","value":"v"}]` }},
		{"attachments", number(email.at("attachments"), "maxItems"), func(n int) string { return `"attachments":[` + repeat(n, attached) + `]` }},
		{"filename", number(file.at("filename"), "x-max-bytes"), func(n int) string { return `"attachments":[{"filename":"` + xs(n) + `","content":""}]` }},
		{"content_id", number(file.at("content_id"), "x-max-bytes"), func(n int) string {
			return `"attachments":[{"filename":"a","content":"","content_id":"` + xs(n) + `"}]`
		}},
	} {
		for more, want := range map[int]int{0: http.StatusAccepted, 1: http.StatusUnprocessableEntity} {
			changed := test.body(test.limit + more)
			name, _, _ := strings.Cut(changed, ":")
			body := regexp.MustCompile(name+`:"[^"]*",?`).ReplaceAllString(simple, "")
			body = "{" + changed + "," + strings.TrimPrefix(body, "{")
			if got := s.do("POST", "/emails", body); got.status != want {
				t.Errorf("%s, limit %d and %d more: answer %d %s", test.name, test.limit, more, got.status, got.body)
			}
		}
	}

	batch := number(document.at("paths", "/emails/batch", "post", "requestBody", "content", "application/json", "schema"), "maxItems")
	for more, want := range map[int]int{0: http.StatusAccepted, 1: http.StatusUnprocessableEntity} {
		body := "[" + repeat(batch+more, func(int) string { return simple }) + "]"
		if got := s.do("POST", "/emails/batch", body); got.status != want {
			t.Errorf("batch of %d: answer %d %s", batch+more, got.status, got.body)
		}
	}
	key := number(document.at("components", "parameters", "IdempotencyKey", "schema"), "maxLength")
	for more, want := range map[int]int{0: http.StatusAccepted, 1: http.StatusBadRequest} {
		if got := s.do("POST", "/emails", simple, "Idempotency-Key", xs(key+more)); got.status != want {
			t.Errorf("key of %d: answer %d %s", key+more, got.status, got.body)
		}
	}
}

func TestOpenAPIConstants(t *testing.T) {
	t.Parallel()
	document := openAPIContract(t).document
	page := node(document.at("paths", "/emails", "get").list("parameters")[0].(map[string]any)).at("schema")
	schedule := document.at("components", "schemas", "SendEmail", "properties", "scheduled_at")
	for name, test := range map[string]struct{ got, want any }{
		"the largest page": {page["maximum"], api.MaxPage},
		"the usual page":   {page["default"], api.DefaultPage},
		"a body":           {document.at("paths", "/emails", "post", "requestBody")["x-max-bytes"], api.DefaultMaxBody},
		"days ahead": {
			regexp.MustCompile(`\d+`).FindString(schedule.text("description")), int(outbox.MaxScheduleAhead / (24 * time.Hour)),
		},
	} {
		if fmt.Sprint(test.got) != fmt.Sprint(test.want) {
			t.Errorf("%s: %v in openapi.json, %v in the code", name, test.got, test.want)
		}
	}
}
