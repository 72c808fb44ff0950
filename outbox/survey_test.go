package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxd/outboxd/outbox"
)

func listed(list []outbox.Listing) (ids []uuid.UUID) {
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	return ids
}

// Operators see the emails of all orgs, through a pool that by itself sees none.
func TestOperatorsSeeAllOrgs(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	ctx := context.Background()
	w.exec(`UPDATE outbox.attempts SET provider = 'q', provider_message_id = '<m@p>' WHERE email_id = $1`, w.b.doubtful)
	browse := func(f outbox.Filter) ([]uuid.UUID, bool) {
		t.Helper()
		f.Limit = max(f.Limit, 3)
		list, more, err := w.client.Browse(ctx, f)
		must(t, err)
		return listed(list), more
	}
	check := func(what string, got []uuid.UUID, want ...uuid.UUID) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	a, b := w.a, w.b
	first, more := browse(outbox.Filter{})
	check("the newest", first, b.scheduled, b.doubtful, b.failed)
	next, moreStill := browse(outbox.Filter{After: b.failed, Limit: 5})
	check("those before", next, b.email, a.scheduled, a.doubtful, a.failed, a.email)
	if !more || moreStill {
		t.Errorf("more: %t, then %t", more, moreStill)
	}
	both, _ := browse(outbox.Filter{Status: outbox.StatusUnknown})
	check("a status in all orgs", both, b.doubtful, a.doubtful)
	one, _ := browse(outbox.Filter{Status: outbox.StatusUnknown, Org: a.org})
	check("a status in one", one, a.doubtful)
	at, _ := browse(outbox.Filter{Provider: "q"})
	check("a provider", at, b.doubtful)
	none, _ := browse(outbox.Filter{Since: time.Now().Add(time.Hour)})
	check("later than now", none)

	find := func(text string) map[uuid.UUID]outbox.FoundBy {
		t.Helper()
		list, err := w.client.Find(ctx, text)
		must(t, err)
		by := map[uuid.UUID]outbox.FoundBy{}
		for _, l := range list {
			by[l.ID] = l.FoundBy
		}
		return by
	}
	d, err := w.client.Dossier(ctx, b.doubtful)
	must(t, err)
	for text, want := range map[string]map[uuid.UUID]outbox.FoundBy{
		" " + a.failed.String() + " ":       {a.failed: outbox.FoundByID},
		"k":                                 {a.email: outbox.FoundByIdempotencyKey, b.email: outbox.FoundByIdempotencyKey},
		d.Attempts[0].ProviderKey.String():  {b.doubtful: outbox.FoundByProviderKey},
		"<m@p>":                             {b.doubtful: outbox.FoundByProviderMessageID},
		"Zoë <ZOE@Example.org>":             everyone(outbox.FoundByAddress, a, b),
		"nobody@example.org":                {},
		"":                                  {},
		"a\x00b":                            {},
		uuid.NewString():                    {},
		uuid.Nil.String():                   {},
		"%' OR '1'='1":                      {},
		"a b@example.org, zoe@example.org>": {},
	} {
		if got := find(text); !mapsEqual(got, want) {
			t.Errorf("%q finds %v, want %v", text, got, want)
		}
	}

	if d.OrgName != b.org.String() || d.Begun != 1 || d.LastProvider != "q" || len(d.Jobs) != 1 || d.Jobs[0].State != "available" {
		t.Errorf("dossier %+v", d)
	}
	if d.Attempts[0].InDoubtAt.IsZero() || d.Message.Subject != full().Subject || d.Message.HTML+d.Message.Text != "" {
		t.Errorf("dossier %+v", d)
	}
	if _, err := w.client.Dossier(ctx, uuid.New()); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("error %v, want not found", err)
	}
	w.exec(`DELETE FROM outbox.email_contents WHERE email_id = $1`, b.doubtful)
	if d, err = w.client.Dossier(ctx, b.doubtful); err != nil || !d.Purged || d.Status != outbox.StatusUnknown {
		t.Errorf("purged: %+v, error %v", d, err)
	}

	must(t, w.client.Unsuppress(ctx, b.org, "gone@example.com"))
	found, err := w.client.FindSuppressions(ctx, "Gone@Example.com")
	if err != nil || len(found) != 1 || found[0].Org != a.org || found[0].OrgName != a.org.String() || found[0].Reason != outbox.SuppressionManual {
		t.Errorf("suppressions %+v, error %v", found, err)
	}
	orgs, err := outbox.ListOrgs(ctx, w.closed)
	if err != nil || len(orgs) != 2 || orgs[0].Waiting != 3 || orgs[0].InDoubt != 1 {
		t.Errorf("orgs %+v, error %v", orgs, err)
	}
	if org, err := w.client.OrgOf(ctx, a.email); err != nil || org != a.org {
		t.Errorf("org %v, error %v", org, err)
	}
}

func everyone(by outbox.FoundBy, tenants ...tenant) map[uuid.UUID]outbox.FoundBy {
	all := map[uuid.UUID]outbox.FoundBy{}
	for _, x := range tenants {
		for _, id := range []uuid.UUID{x.email, x.failed, x.doubtful, x.scheduled} {
			all[id] = by
		}
	}
	return all
}

func mapsEqual(a, b map[uuid.UUID]outbox.FoundBy) bool {
	for id, by := range a {
		if b[id] != by {
			return false
		}
	}
	return len(a) == len(b)
}

// What became of a sealed email is shown without its key, and an address is found
// under any key.
func TestOperatorsSeeWhatBecameOfSealedEmails(t *testing.T) {
	t.Parallel()
	d := newDelivering(t)
	d.org = newOrg(t, d.pool)
	ctx := context.Background()
	d.useKeys("k1")
	id := d.enqueue(func(m *outbox.Message) { *m = canaries() })
	look := func() *outbox.Dossier {
		t.Helper()
		list, err := d.client.Find(ctx, "canary-to@example.org")
		must(t, err)
		dossier, err := d.client.Dossier(ctx, id)
		must(t, err)
		if len(list) > 0 && (list[0].ID != id || (list[0].Unreadable == nil) != (dossier.Unreadable == nil)) {
			t.Errorf("found %+v", list[0])
		}
		if found := len(list) == 1; found != (dossier.Unreadable == nil) {
			t.Errorf("found: %t, unreadable: %v", found, dossier.Unreadable)
		}
		return dossier
	}
	if got := look(); got.Unreadable != nil || got.Message.From == "" || got.Message.Text != "" {
		t.Errorf("with the key: %+v", got)
	}
	d.useKeys("k2")
	if got := look(); got.Unreadable == nil || !got.Unreadable.Missing || got.Status != outbox.StatusQueued || got.Message.From != "" {
		t.Errorf("without the key: %+v", got)
	}
	d.useKeys("k2", "k1")
	if got := look(); got.Unreadable != nil {
		t.Errorf("with a second key: %v", got.Unreadable)
	}
}

// The state, the pace, what is stopped and what was recovered.
func TestStateOfTheDeployment(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	ctx := context.Background()
	state, err := outbox.ReadState(ctx, w.closed)
	must(t, err)
	waiting := map[outbox.Status]int{}
	for _, x := range state.Waiting {
		waiting[x.Status] += x.Emails
		if x.Status == outbox.StatusUnknown && x.Emails > 0 && x.Oldest <= 0 {
			t.Error("a doubt has no age")
		}
	}
	if waiting[outbox.StatusUnknown] != 2 || waiting[outbox.StatusScheduled] != 2 || waiting[outbox.StatusQueued] != 2 || state.Workers != 0 {
		t.Errorf("state %+v", state)
	}

	w.exec(`UPDATE outbox.emails SET status = 'sent', ended_at = now() WHERE id = $1`, w.a.email)
	w.exec(`UPDATE outbox.river_job SET state = 'completed', finalized_at = now() WHERE args ->> 'email_id' = ANY ($1::text[])`,
		[]string{w.a.email.String(), w.a.failed.String(), w.b.doubtful.String()})
	pace, err := outbox.ReadPace(ctx, w.closed)
	must(t, err)
	for name, got := range map[string][2]float64{"submitted": {pace.Submitted, 8}, "accepted": {pace.Accepted, 1}, "otherwise": {pace.Otherwise, 1}} {
		if emails := got[0] * 300; emails < got[1]-0.01 || emails > got[1]+0.01 {
			t.Errorf("%s: %.2f emails in five minutes, want %v", name, emails, got[1])
		}
	}

	w.exec(`UPDATE outbox.attempts SET stage = 'accepted', ended_at = began_at + interval '40 milliseconds' WHERE email_id = $1`, w.a.email)
	w.exec(`UPDATE outbox.attempts SET stage = 'accepted', ended_at = began_at - interval '1 hour' WHERE email_id = $1`, w.b.doubtful)
	paces, err := outbox.ReadProviderPaces(ctx, w.closed)
	if err != nil || len(paces) != 1 || paces[0].Name != "p" || paces[0].Accepted != pace.Accepted || paces[0].Rejected != 0 ||
		paces[0].Median != 40*time.Millisecond {
		t.Errorf("paces %+v, error %v", paces, err)
	}

	must(t, outbox.PauseOrg(ctx, w.open, w.a.org.String(), "unpaid"))
	w.exec(`INSERT INTO outbox.river_queue (name, paused_at) VALUES ('emails', now()), ('theirs', now())`)
	pauses, err := outbox.ListPauses(ctx, w.closed)
	if err != nil || len(pauses) != 2 || pauses[0].Kind != outbox.PauseOfQueue || pauses[0].Name != "emails" ||
		pauses[1].Kind != outbox.PauseOfOrg || pauses[1].Name != w.a.org.String() || pauses[1].Reason != "unpaid" || pauses[1].Since.IsZero() {
		t.Errorf("pauses %+v, error %v", pauses, err)
	}
}
