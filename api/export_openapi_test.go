package api

import "github.com/outboxd/outboxd/outbox"

// What the tests of openapi.json hold it to.
const (
	DefaultPage = defaultPage
	MaxPage     = maxPage
)

// RequestTypes are the types that bodies are read into, by their schema.
var RequestTypes = map[string]any{
	"SendEmail":    emailRequest{},
	"Attachment":   attachment{},
	"UpdateEmail":  updateRequest{},
	"ResolveEmail": resolveRequest{},

	"AddSuppression": suppressionRequest{},
	"CreateWebhook":  createWebhookRequest{},
	"UpdateWebhook":  updateWebhookRequest{},
	"ReplayWebhook":  replayWebhookRequest{},
}

// AnswerTypes are the types that answers are written from, by their schema.
var AnswerTypes = map[string]any{
	"EmailReference": emailReference{},
	"EmailList":      listAnswer{},
	"EmailSummary":   emailSummary{},
	"Email":          emailDetail{},
	"Attempt":        attemptDetail{},
	"Event":          eventDetail{},
	"Error":          Error{},
	"FieldError":     outbox.FieldError{},
	"Tag":            outbox.Tag{},

	"Suppression":           suppressionAnswer{},
	"SuppressionList":       listAnswer{},
	"DeletedSuppression":    deletedSuppression{},
	"WebhookReference":      webhookReference{},
	"WebhookSecret":         webhookSecret{},
	"WebhookDeleted":        webhookDeleted{},
	"WebhookReplayed":       webhookReplayed{},
	"WebhookList":           listAnswer{},
	"WebhookSummary":        webhookSummary{},
	"Webhook":               webhookDetail{},
	"WebhookEventReference": webhookReference{},
	"WebhookEventList":      listAnswer{},
	"WebhookEventSummary":   webhookEventSummary{},
	"WebhookEvent":          webhookEventDetail{},
}
