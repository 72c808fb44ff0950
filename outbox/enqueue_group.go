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
	// else holds. The submission that has to wait then goes alone.
	groupPatience = "20ms"
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
		return c.enqueue(ctx, p.alone, c.as(p.Org).txOptions())
	}
	return c.group.do(ctx, p.Org, p)
}

func (c *Client) enqueueTogether(org uuid.UUID, together []*pending, stay func() []*pending) error {
	one := len(together) == 1
	if one && c.gate.isHeld(together[0].scope()) {
		return ErrSubmissionInProgress
	}
	options := c.as(org).txOptions()
	options.BeginQuery += "; set local lock_timeout = '" + groupPatience + "'"
	err := c.enqueue(context.Background(), stay, options)
	if one && errors.Is(err, ErrSubmissionInProgress) {
		c.gate.hold(together[0].scope())
	}
	return err
}

// enqueueAlone waits for a key that somebody else holds as long as the pool's
// lock_timeout allows.
func (c *Client) enqueueAlone(org uuid.UUID, p *pending) error {
	return c.enqueue(context.Background(), p.alone, c.as(org).txOptions())
}

// alone is a batch of one.
func (p *pending) alone() []*pending { return []*pending{p} }
