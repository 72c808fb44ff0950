package outbox

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// groupsPerOrg is how many transactions of an org's submissions go on at a time.
	// While one waits for the disk, the next is on its way; with more, fewer
	// submissions share one, and each costs more (measured).
	groupsPerOrg = 2

	// groupEmails and groupBytes bound a shared transaction, so that nobody waits for
	// long behind others. One submission alone may be larger.
	groupEmails = 200
	groupBytes  = 1 << 20

	// groupPatience is how long a shared transaction waits for a key that somebody
	// else holds, before each of its submissions goes alone: one that has to wait does
	// not hold the others for longer.
	groupPatience = "50ms"
)

// grouped is a submission on its way through a group.
type grouped struct {
	*pending
	// claimed is set by whoever comes first: the writer, or the caller who gives up.
	claimed atomic.Bool
	// done gets the outcome of the transaction; that of the submission is in pending.
	done chan error
}

func groupFits(together []*grouped, more *grouped) bool {
	emails, bytes := len(more.emails), more.size()
	for _, g := range together {
		emails, bytes = emails+len(g.emails), bytes+g.size()
	}
	return emails <= groupEmails && bytes <= groupBytes
}

// size is about how many bytes of content there are.
func (p *pending) size() (bytes int) {
	for _, e := range p.emails {
		bytes += len(e.message.HTML) + len(e.message.Text)
		for _, a := range e.message.Attachments {
			bytes += len(a.Content)
		}
	}
	return bytes
}

// enqueueGrouped stores a submission, in one transaction with others that come at the
// same time. Its error is as that of enqueue.
func (c *Client) enqueueGrouped(ctx context.Context, p *pending) error {
	if c.gate.isHeld(p.scope()) {
		return c.enqueue(ctx, []*pending{p}, c.as(p.Org).txOptions())
	}
	g := &grouped{pending: p, done: make(chan error, 1)}
	c.group.add(p.Org, g)
	select {
	case err := <-g.done:
		return err
	case <-ctx.Done():
		if g.claimed.CompareAndSwap(false, true) {
			return ctx.Err() // and nothing is stored
		}
		return <-g.done
	}
}

// enqueueGroup stores submissions of one org together. What goes wrong with one of
// them is no matter of the others: then each goes alone, and the next group does not
// wait for that.
func (c *Client) enqueueGroup(org uuid.UUID, together []*grouped) {
	var batch []*pending
	wanted := together[:0]
	for _, g := range together {
		if g.claimed.CompareAndSwap(false, true) {
			wanted, batch = append(wanted, g), append(batch, g.pending)
		}
	}
	if len(batch) == 0 {
		return
	}
	options := c.as(org).txOptions()
	options.BeginQuery += "; set local lock_timeout = '" + groupPatience + "'"
	err := c.enqueue(context.Background(), batch, options)
	if _, refused := errors.AsType[*pgconn.PgError](err); !refused || errors.Is(err, ErrOutcomeUnknown) {
		for _, g := range wanted {
			g.done <- err
		}
		return
	}
	for _, g := range wanted {
		go func() { g.done <- c.enqueueAlone(g.pending) }()
	}
}

// enqueueAlone stores a submission out of a group that failed, and remembers its key if
// that was why.
func (c *Client) enqueueAlone(p *pending) error {
	err := c.enqueue(context.Background(), []*pending{p}, c.as(p.Org).txOptions())
	if errors.Is(err, ErrSubmissionInProgress) {
		c.gate.hold(p.scope())
	}
	return err
}
