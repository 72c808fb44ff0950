package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// nodeResult is what a method of the SDK for Node returned.
type nodeResult struct {
	Data    json.RawMessage   `json:"data"`
	Error   *nodeError        `json:"error"`
	Headers map[string]string `json:"headers"`
}

// nodeError is the SDK's error: the members that it declares, then those of
// RFC 9457, which it hands on.
type nodeError struct {
	Name       string `json:"name"`
	Message    string `json:"message"`
	StatusCode int    `json:"statusCode"`

	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// nodeSDK is what the scenario printed, by step.
type nodeSDK struct {
	t       *testing.T
	results map[string]nodeResult
}

func TestSDKNode(t *testing.T) {
	t.Parallel()
	script := filepath.Join(npmInstall(t, filepath.Join("testdata", "resend-node")), "scenario.mjs")
	in, inbox := install(t), startMailpit(t)
	base := in.start("api", inbox.env()...).url("api")
	later := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	moved := later.Add(time.Hour)
	sdk := runScenario(t, script, []string{later.Format(time.RFC3339), moved.Format(time.RFC3339)},
		"RESEND_BASE_URL="+base, "RESEND_API_KEY="+in.token, "READ_ONLY_KEY="+in.key("read"))

	sdk.run("send", func(s nodeSDK) { s.checkSend(base, in.token) })
	sdk.run("idempotency", nodeSDK.checkIdempotency)
	sdk.run("schedule", func(s nodeSDK) { s.checkSchedule(moved) })
	sdk.run("batch", nodeSDK.checkBatch)
	sdk.run("list", nodeSDK.checkList)
	sdk.run("webhooks", nodeSDK.checkWebhooks)
	sdk.run("errors", nodeSDK.checkErrors)
	sdk.run("base URLs", nodeSDK.checkBaseURLs)

	in.start("worker", inbox.env()...)
	for _, subject := range []string{"Order 7 from Node", "Order 7 from old Node"} {
		inbox.checkArrived(subject, "base64.bin", "array.bin", "buffer.bin")
	}
}

// runScenario runs the script, which uses the SDK.
func runScenario(t *testing.T, script string, args []string, env ...string) nodeSDK {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("the scenario: %v\n%s", err, &stderr)
	}
	sdk := nodeSDK{t: t}
	if err := json.Unmarshal(stdout.Bytes(), &sdk.results); err != nil {
		t.Fatalf("the scenario printed %v: %s", err, &stdout)
	}
	return sdk
}

func (s nodeSDK) run(name string, check func(nodeSDK)) {
	s.t.Run(name, func(t *testing.T) { check(nodeSDK{t, s.results}) })
}

// data decodes the result of a step that succeeded.
func (s nodeSDK) data(step string, v any) nodeResult {
	s.t.Helper()
	result, ok := s.results[step]
	if !ok || result.Error != nil {
		s.t.Fatalf("step %s: error %+v", step, result.Error)
	}
	if err := json.Unmarshal(result.Data, v); err != nil {
		s.t.Fatalf("step %s: %v in %s", step, err, result.Data)
	}
	return result
}

// id returns the id in the result of a step that succeeded.
func (s nodeSDK) id(step string) string {
	s.t.Helper()
	var data struct{ ID string }
	s.data(step, &data)
	return data.ID
}

func (s nodeSDK) wantError(step string, status int, name, message string) {
	s.t.Helper()
	got := s.results[step].Error
	if got == nil {
		s.t.Errorf("step %s: no error, want %s", step, name)
		return
	}
	want := nodeError{
		Name: name, Message: got.Message, StatusCode: status,
		Type: "urn:outboxd:error:" + name, Title: http.StatusText(status), Status: status, Detail: got.Message,
	}
	if diff := cmp.Diff(want, *got); diff != "" || !strings.Contains(got.Message, message) {
		s.t.Errorf("step %s: message %q, want one that says %q (-want +got):\n%s", step, got.Message, message, diff)
	}
}

func (s nodeSDK) checkSend(base, token string) {
	want := wantEmail(s.id("send"), "Order 7 from Node")
	checkStored(s.t, base+"/emails/"+want.ID, token, want)
	var got wireEmail
	s.data("get", &got)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("email (-want +got):\n%s", diff)
	}
	want = wantEmail(s.id("oldSend"), "Order 7 from old Node")
	checkStored(s.t, base+"/emails/"+want.ID, token, want)
}

func (s nodeSDK) checkIdempotency() {
	if first, again := s.id("send"), s.id("replay"); first != again {
		s.t.Errorf("the replay has id %s, want %s", again, first)
	}
	for step, want := range map[string]string{"send": "", "replay": "true"} {
		if got := s.results[step].Headers["idempotent-replayed"]; got != want {
			s.t.Errorf("step %s: idempotent-replayed = %q, want %q", step, got, want)
		}
	}
	s.wantError("reuse", http.StatusUnprocessableEntity, "invalid_idempotent_request", "used for another request")
}

func (s nodeSDK) checkSchedule(moved time.Time) {
	type reference struct{ Object, ID string }
	want := reference{"email", s.id("schedule")}
	for _, step := range []string{"update", "cancel"} {
		var got reference
		if s.data(step, &got); got != want {
			s.t.Errorf("step %s: %+v, want %+v", step, got, want)
		}
	}
	for step, event := range map[string]string{"getUpdated": "scheduled", "getCanceled": "canceled"} {
		var got struct {
			ScheduledAt time.Time `json:"scheduled_at"`
			LastEvent   string    `json:"last_event"`
		}
		s.data(step, &got)
		if !got.ScheduledAt.Equal(moved) || got.LastEvent != event {
			s.t.Errorf("step %s: %+v, want %s and %v", step, got, event, moved)
		}
	}
}

func (s nodeSDK) checkWebhooks() {
	id := s.id("createWebhook")
	var created, got, rotated struct {
		Object, ID, Status, Endpoint string
		Events                       []string
		SigningSecret                string `json:"signing_secret"`
	}
	s.data("createWebhook", &created)
	s.data("getWebhook", &got)
	s.data("rotateWebhook", &rotated)
	if got.SigningSecret != created.SigningSecret || rotated.SigningSecret == created.SigningSecret || rotated.SigningSecret == "" {
		s.t.Errorf("secrets %q, %q, rotated to %q", created.SigningSecret, got.SigningSecret, rotated.SigningSecret)
	}
	if got.Object != "webhook" || got.ID != id || got.Status != "disabled" || got.Endpoint != "https://example.com/webhooks" || len(got.Events) != 2 {
		s.t.Errorf("webhook %+v", got)
	}
	for step, n := range map[string]int{"listWebhooks": 1, "listWebhookEvents": 0} {
		var list struct {
			Object string
			Data   []struct{ ID string }
		}
		if s.data(step, &list); list.Object != "list" || len(list.Data) != n {
			s.t.Errorf("step %s: %+v", step, list)
		}
	}
	var removed struct {
		ID      string
		Deleted bool
	}
	if s.data("removeWebhook", &removed); removed.ID != id || !removed.Deleted || s.id("updateWebhook") != id {
		s.t.Errorf("removed %+v", removed)
	}
	s.wantError("getWebhookEvent", http.StatusNotFound, "not_found", "Webhook event not found")
	s.wantError("replayWebhookEvent", http.StatusConflict, "webhook_disabled", "disabled")
}

// batchData is what the SDK returns of a batch.
type batchData struct {
	Data   []struct{ ID string }
	Errors []struct {
		Index   int
		Message string
	}
}

func (s nodeSDK) checkBatch() {
	s.wantError("strictBad", http.StatusUnprocessableEntity, "validation_error", "[1].to")
	var strict, permissive, again batchData
	s.data("strict", &strict)
	if len(strict.Data) != 2 || len(strict.Errors) != 0 {
		s.t.Errorf("strict: %+v, want two ids", strict)
	}
	s.data("permissive", &permissive)
	if len(permissive.Data) != 2 || len(permissive.Errors) != 1 ||
		permissive.Errors[0].Index != 1 || !strings.Contains(permissive.Errors[0].Message, "to") {
		s.t.Errorf("permissive: %+v, want two ids, and an error about to of the second", permissive)
	}
	s.data("permissiveReplay", &again)
	if diff := cmp.Diff(permissive, again); diff != "" {
		s.t.Errorf("replay (-first +again):\n%s", diff)
	}
}

// nodePage is a page of a list, as far as the test looks.
type nodePage struct {
	Object  string
	HasMore bool `json:"has_more"`
	Data    []struct{ ID, Subject string }
}

func (p nodePage) subjects() []string {
	var subjects []string
	for _, email := range p.Data {
		subjects = append(subjects, email.Subject)
	}
	return subjects
}

// The list was asked for after the sends above it in the scenario, and shows
// the newest first. What was refused or replayed is not in it.
func (s nodeSDK) checkList() {
	subjects := []string{
		"Permissive 2", "Permissive 1", "Strict 2", "Strict 1", "Later", "Order 7 from old Node", "Order 7 from Node",
	}
	for step, want := range map[string]struct {
		subjects []string
		more     bool
	}{
		"list":       {subjects, false},
		"page":       {subjects[:2], true},
		"nextPage":   {subjects[2:4], true},
		"pageBefore": {subjects[:2], false},
	} {
		var got nodePage
		s.data(step, &got)
		if !slices.Equal(got.subjects(), want.subjects) || got.HasMore != want.more || got.Object != "list" {
			s.t.Errorf("step %s: %+v, want %v, more %v", step, got, want.subjects, want.more)
		}
	}
}

func (s nodeSDK) checkErrors() {
	s.wantError("invalid", http.StatusUnprocessableEntity, "validation_error", "to")
	s.wantError("unknownId", http.StatusNotFound, "not_found", "Email not found")
	s.wantError("noKey", http.StatusUnauthorized, "missing_api_key", "Authorization: Bearer")
	s.wantError("wrongKey", http.StatusUnauthorized, "invalid_api_key", "not valid")
	s.wantError("readOnlyKey", http.StatusForbidden, "restricted_api_key", "scope send")
	s.wantError("tooLarge", http.StatusRequestEntityTooLarge, "payload_too_large", "larger than")
}

func (s nodeSDK) checkBaseURLs() {
	for _, suffix := range []string{"/", "/v1", "/v1/", "/api/v1"} {
		if got, want := s.id("base "+suffix), s.id("send"); got != want {
			s.t.Errorf("base URL with %q: %s, want %s", suffix, got, want)
		}
	}
}
