package e2e_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/resend/resend-go/v3"
)

// goSDK is the official SDK for Go on an API process.
type goSDK struct {
	t      *testing.T
	in     *installation
	base   string
	client *resend.Client
}

func newGoClient(t *testing.T, baseURL, token string) *resend.Client {
	t.Helper()
	base, err := url.Parse(baseURL)
	if err != nil {
		t.Fatal(err)
	}
	client := resend.NewCustomClient(&http.Client{Timeout: patience}, token)
	client.BaseURL = base
	return client
}

func TestSDKGo(t *testing.T) {
	t.Parallel()
	in, inbox := install(t), startMailpit(t)
	base := in.start("api", inbox.env()...).url("api")
	sdk := goSDK{t, in, base, newGoClient(t, base, in.token)}

	sdk.run("idempotency", goSDK.testIdempotency)
	sdk.run("schedule", goSDK.testSchedule)
	sdk.run("batch", goSDK.testBatch)
	sdk.run("list", goSDK.testList)
	sdk.run("webhooks", goSDK.testWebhooks)
	sdk.run("errors", goSDK.testErrors)
	sdk.run("base URLs", goSDK.testBaseURLs)
	sdk.run("send", func(s goSDK) { s.testSend(inbox) })
}

func (s goSDK) run(name string, test func(goSDK)) {
	s.t.Run(name, func(t *testing.T) {
		s.t = t
		test(s)
	})
}

func smallFromGo(subject string) *resend.SendEmailRequest {
	return &resend.SendEmailRequest{
		From: "Shop <shop@example.com>", To: []string{"jane@example.org"}, Subject: subject, Text: "Hello.",
	}
}

func (s goSDK) send(email *resend.SendEmailRequest, key string) string {
	s.t.Helper()
	sent, err := s.client.Emails.SendWithOptions(s.t.Context(), email, &resend.SendEmailOptions{IdempotencyKey: key})
	if err != nil {
		s.t.Fatal(err)
	}
	return sent.Id
}

func (s goSDK) get(id string) *resend.Email {
	s.t.Helper()
	email, err := s.client.Emails.GetWithContext(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return email
}

// testSend is the last: with a worker, emails do not stay queued.
func (s goSDK) testSend(inbox *mailpit) {
	email := smallFromGo("Order 7 from Go")
	email.Cc, email.Bcc, email.ReplyTo = []string{"joe@example.org"}, []string{"ann@example.org"}, "help@example.com"
	email.Html, email.Text = "<p>Thank you ✓</p>", "Thank you ✓"
	email.Headers = map[string]string{"X-Order": "7"}
	email.Tags = []resend.Tag{{Name: "kind", Value: "receipt"}}
	email.Attachments = []*resend.Attachment{ // this SDK makes an array of byte values
		{Filename: "a.bin", Content: everyByte(), ContentType: "application/octet-stream"},
		{Filename: "b.bin", Content: everyByte()},
	}
	id := s.send(email, "")
	checkStored(s.t, s.base+"/emails/"+id, s.in.token, wantEmail(id, email.Subject))

	got := s.get(id)
	want := &resend.Email{
		Id: id, Object: "email", From: email.From, To: email.To, Cc: email.Cc, Bcc: email.Bcc,
		ReplyTo: []string{email.ReplyTo}, Subject: email.Subject, Html: email.Html, Text: email.Text,
		CreatedAt: got.CreatedAt, LastEvent: "queued",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("email (-want +got):\n%s", diff)
	}
	s.in.start("worker", inbox.env()...)
	inbox.checkArrived(email.Subject, "a.bin", "b.bin")
}

func (s goSDK) testIdempotency() {
	first := s.send(smallFromGo("Once"), "once")
	if again := s.send(smallFromGo("Once"), "once"); again != first {
		s.t.Errorf("the replay has id %s, want %s", again, first)
	}
	_, err := s.client.Emails.SendWithOptions(s.t.Context(), smallFromGo("Twice"), &resend.SendEmailOptions{IdempotencyKey: "once"})
	s.wantError(err, "idempotency key was used for another request")
}

func (s goSDK) testSchedule() {
	email := smallFromGo("Later")
	email.ScheduledAt = time.Now().Add(time.Hour).Format(time.RFC3339)
	id := s.send(email, "")
	if event := s.get(id).LastEvent; event != "scheduled" {
		s.t.Errorf("last event = %q, want scheduled", event)
	}
	moved := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	updated, err := s.client.Emails.UpdateWithContext(s.t.Context(), &resend.UpdateEmailRequest{Id: id, ScheduledAt: moved.Format(time.RFC3339)})
	if err != nil || *updated != (resend.UpdateEmailResponse{Id: id, Object: "email"}) {
		s.t.Errorf("update: %+v, %v", updated, err)
	}
	var stored struct {
		ScheduledAt time.Time `json:"scheduled_at"` // which this SDK does not read
	}
	mustCall(s.t, http.MethodGet, s.base+"/emails/"+id, s.in.token, "", nil).decode(s.t, &stored)
	if !stored.ScheduledAt.Equal(moved) {
		s.t.Errorf("scheduled at %v, want %v", stored.ScheduledAt, moved)
	}
	canceled, err := s.client.Emails.CancelWithContext(s.t.Context(), id)
	if err != nil || *canceled != (resend.CancelScheduledEmailResponse{Id: id, Object: "email"}) {
		s.t.Errorf("cancel: %+v, %v", canceled, err)
	}
	if event := s.get(id).LastEvent; event != "canceled" {
		s.t.Errorf("last event = %q, want canceled", event)
	}
}

func (s goSDK) testBatch() {
	bad := smallFromGo("Bad")
	bad.To = []string{"nobody"}
	mixed := []*resend.SendEmailRequest{smallFromGo("Good 1"), bad, smallFromGo("Good 2")}

	_, err := s.client.Batch.SendWithContext(s.t.Context(), mixed)
	s.wantError(err, "[1].to")

	good := []*resend.SendEmailRequest{smallFromGo("Strict 1"), smallFromGo("Strict 2")}
	strict, err := s.client.Batch.SendWithOptions(s.t.Context(), good, &resend.BatchSendEmailOptions{BatchValidation: resend.BatchValidationStrict})
	if err != nil || len(strict.Data) != 2 || len(strict.Errors) != 0 {
		s.t.Fatalf("strict: %+v, %v", strict, err)
	}
	if subject := s.get(strict.Data[1].Id).Subject; subject != "Strict 2" {
		s.t.Errorf("the second id is of %q", subject)
	}

	options := &resend.BatchSendEmailOptions{BatchValidation: resend.BatchValidationPermissive, IdempotencyKey: "batch"}
	permissive, err := s.client.Batch.SendWithOptions(s.t.Context(), mixed, options)
	if err != nil || len(permissive.Data) != 2 || len(permissive.Errors) != 1 {
		s.t.Fatalf("permissive: %+v, %v", permissive, err)
	}
	if e := permissive.Errors[0]; e.Index != 1 || !strings.Contains(e.Message, "to") {
		s.t.Errorf("error = %+v, want one about to of the second", e)
	}
	if subject := s.get(permissive.Data[1].Id).Subject; subject != "Good 2" {
		s.t.Errorf("the second id is of %q", subject)
	}
	again, err := s.client.Batch.SendWithOptions(s.t.Context(), mixed, options)
	if diff := cmp.Diff(permissive, again); err != nil || diff != "" {
		s.t.Errorf("replay: %v (-first +again):\n%s", err, diff)
	}
}

func (s goSDK) testList() {
	for range 3 {
		s.send(smallFromGo("Listed"), "")
	}
	all := s.list(nil)
	if all.Object != "list" || len(all.Data) < 3 || all.Data[0].Subject != "Listed" {
		s.t.Fatalf("list = %+v", all)
	}
	two := 2
	page := s.list(&resend.ListOptions{Limit: &two})
	next := s.list(&resend.ListOptions{Limit: &two, After: &page.Data[1].Id})
	back := s.list(&resend.ListOptions{Limit: &two, Before: &next.Data[0].Id})
	if diff := cmp.Diff(all.Data[:3], slices.Concat(page.Data, next.Data[:1])); diff != "" || !page.HasMore {
		s.t.Errorf("pages, has more %v (-all +pages):\n%s", page.HasMore, diff)
	}
	if diff := cmp.Diff(page.Data, back.Data); diff != "" || back.HasMore {
		s.t.Errorf("the page before, has more %v (-want +got):\n%s", back.HasMore, diff)
	}
}

func (s goSDK) list(options *resend.ListOptions) resend.ListEmailsResponse {
	s.t.Helper()
	list, err := s.client.Emails.ListWithOptions(s.t.Context(), options)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s goSDK) testWebhooks() {
	ctx, endpoint := s.t.Context(), "https://example.com/webhooks"
	created, err := s.client.Webhooks.CreateWithContext(ctx, &resend.CreateWebhookRequest{
		Endpoint: endpoint, Events: []string{resend.EventEmailSent, resend.EventEmailBounced},
	})
	if err != nil || created.Object != "webhook" || !strings.HasPrefix(created.SigningSecret, "whsec_") {
		s.t.Fatalf("created %+v, %v", created, err)
	}
	moved := "https://example.com/v2"
	updated, err := s.client.Webhooks.UpdateWithContext(ctx, created.Id, &resend.UpdateWebhookRequest{Endpoint: &moved, Events: []string{resend.EventEmailOpened}})
	if err != nil || *updated != (resend.UpdateWebhookResponse{Object: "webhook", Id: created.Id}) {
		s.t.Errorf("updated %+v, %v", updated, err)
	}
	got, err := s.client.Webhooks.GetWithContext(ctx, created.Id)
	if err != nil {
		s.t.Fatal(err)
	}
	want := &resend.Webhook{
		Object: "webhook", Id: created.Id, CreatedAt: got.CreatedAt, Status: "enabled", Endpoint: moved,
		Events: []string{resend.EventEmailOpened}, SigningSecret: created.SigningSecret,
	}
	if diff := cmp.Diff(want, got); diff != "" || got.CreatedAt == "" {
		s.t.Errorf("webhook (-want +got):\n%s", diff)
	}
	list, err := s.client.Webhooks.ListWithContext(ctx)
	if err != nil || len(list.Data) != 1 || list.Data[0].Id != created.Id || list.HasMore {
		s.t.Errorf("list %+v, %v", list, err)
	}
	removed, err := s.client.Webhooks.RemoveWithContext(ctx, created.Id)
	if err != nil || *removed != (resend.DeleteWebhookResponse{Object: "webhook", Id: created.Id, Deleted: true}) {
		s.t.Errorf("removed %+v, %v", removed, err)
	}
	_, err = s.client.Webhooks.GetWithContext(ctx, created.Id)
	s.wantError(err, "Webhook not found")
}

// This SDK drops the error's name and status; its text is all there is.
func (s goSDK) wantError(err error, text string) {
	s.t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		s.t.Errorf("error %v, want one that says %q", err, text)
	}
}

func (s goSDK) testErrors() {
	ctx := s.t.Context()
	for _, test := range []struct{ token, text string }{
		{"", "Send the API key"},
		{"re_123", "The API key is not valid"},
		{s.in.key("read"), "lacks the scope send"},
	} {
		_, err := newGoClient(s.t, s.base, test.token).Emails.SendWithContext(ctx, smallFromGo("Refused"))
		s.wantError(err, test.text)
	}
	_, err := s.client.Emails.GetWithContext(ctx, "019a0000-0000-7000-8000-000000000000")
	s.wantError(err, "Email not found")
	_, err = s.client.Emails.SendWithContext(ctx, &resend.SendEmailRequest{})
	s.wantError(err, "from")
	tooLarge := smallFromGo("Too large")
	tooLarge.Text = strings.Repeat("x", 10<<20)
	_, err = s.client.Emails.SendWithContext(ctx, tooLarge)
	s.wantError(err, "larger than")
}

func (s goSDK) testBaseURLs() {
	id := s.send(smallFromGo("Base URL"), "")
	for _, suffix := range []string{"", "/", "//", "/v1/", "/api/v1/"} {
		email, err := newGoClient(s.t, s.base+suffix, s.in.token).Emails.GetWithContext(s.t.Context(), id)
		if err != nil || email.Id != id {
			s.t.Errorf("base URL with %q: %+v, %v", suffix, email, err)
		}
	}
}
