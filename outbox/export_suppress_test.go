package outbox

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxd/outboxd/providers"
)

// SuppressionOf is a suppression of an org.
type SuppressionOf struct {
	Org uuid.UUID
	Suppression
}

// SuppressTx suppresses addresses in the caller's transaction.
func SuppressTx(ctx context.Context, tx pgx.Tx, list []SuppressionOf) error {
	rows := make([]suppression, len(list))
	for i, s := range list {
		rows[i] = suppression{s.Org, s.Suppression}
	}
	return suppressTx(ctx, tx, rows)
}

// SuppressionOf is why an event of a provider suppresses its recipient.
func (c *Client) SuppressionOf(event providers.Event) SuppressionReason {
	return c.suppressionOf(event)
}
