package outbox

import (
	"context"
	"errors"

	"github.com/google/uuid"
)

const (
	// groupsAtOnce is how many transactions of a group go on at a time: of an org's
	// submissions, of a worker's beginnings, of its endings.
	groupsAtOnce = 2

	// groupEmails and groupBytes bound a shared transaction, so that nobody waits for
	// long behind others. One submission alone may be larger.
	groupEmails = 200
	groupBytes  = 1 << 20

	// groupPatience is how long a shared transaction waits for a key that somebody
	// else holds, before each of its submissions goes alone: one that has to wait does
	// not hold the others for longer.
	groupPatience = "50ms"
)

// submissions is the group in which an org's submissions go: a transaction sees the
// rows of one org.
type submissions = group[uuid.UUID, *pending]

func (c *Client) groupSubmissions() {
	c.group.atOnce, c.group.fits, c.group.write, c.group.alone = groupsAtOnce, fitsSubmissions, c.enqueueTogether, c.enqueueAlone
}

func fitsSubmissions(together []*pending, more *pending) bool {
	emails, bytes := len(more.emails), more.size()
	for _, p := range together {
		emails, bytes = emails+len(p.emails), bytes+p.size()
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
	return c.group.do(ctx, p.Org, p)
}

func (c *Client) enqueueTogether(org uuid.UUID, together []*pending) error {
	options := c.as(org).txOptions()
	options.BeginQuery += "; set local lock_timeout = '" + groupPatience + "'"
	return c.enqueue(context.Background(), together, options)
}

// enqueueAlone remembers the key if somebody else holds it: what else comes under it
// is not to hold a group.
func (c *Client) enqueueAlone(org uuid.UUID, p *pending) error {
	err := c.enqueue(context.Background(), []*pending{p}, c.as(org).txOptions())
	if errors.Is(err, ErrSubmissionInProgress) {
		c.gate.hold(p.scope())
	}
	return err
}
