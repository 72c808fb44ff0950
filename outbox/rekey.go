package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

const (
	// sealInterval is how often workers look for what came in clear: through SQL,
	// or from a process without keys.
	sealInterval = time.Minute

	// sealBatch and sealBytes bound what is sealed in one transaction, so that it is
	// over soon and fits into memory. One email is always taken, whatever its size.
	sealBatch = 100
	sealBytes = 8 << 20
)

const (
	// storedSizeSQL is how much of an email there is to seal, in bytes.
	storedSizeSQL = `
SELECT c.email_id, coalesce(octet_length(c.html), 0) + coalesce(octet_length(c.text), 0)
    + coalesce(octet_length(c.sealed_body), 0) + coalesce((
        SELECT sum(coalesce(octet_length(a.content), 0) + coalesce(octet_length(a.sealed), 0))
        FROM outbox.attachments a WHERE a.email_id = c.email_id), 0)
FROM outbox.email_contents c WHERE c.email_id > $1`

	// sqlFindClear finds what is not sealed at all. Its index has nothing else.
	sqlFindClear = storedSizeSQL + ` AND c.key_id IS NULL ORDER BY c.email_id LIMIT $2`

	// sqlFindStale finds what is not sealed under one key.
	sqlFindStale = storedSizeSQL + ` AND (c.key_id IS DISTINCT FROM $3 OR c.suppressed_key_id <> $3)
ORDER BY c.email_id LIMIT $2`
)

// sealer seals what is stored under the first key of a ring.
type sealer struct {
	pool *pgxpool.Pool
	keys *KeyRing
}

// storedSize is an email with what there is to seal.
type storedSize struct {
	Email uuid.UUID
	Bytes int64
}

// page finds the next emails to seal.
func (s sealer) page(ctx context.Context, sql string, args ...any) ([]storedSize, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[storedSize])
}

// each calls seal with all emails that a statement finds, in bounded batches.
func (s sealer) each(ctx context.Context, sql string, args []any, seal func(ids []uuid.UUID) error) error {
	var after uuid.UUID
	for {
		found, err := s.page(ctx, sql, append([]any{after, sealBatch}, args...)...)
		if err != nil {
			return err
		}
		for batch := range batchesOf(found) {
			if err := seal(batch); err != nil {
				return err
			}
		}
		if len(found) < sealBatch {
			return nil
		}
		after = found[len(found)-1].Email
	}
}

// batchesOf yields emails that together are not too large.
func batchesOf(found []storedSize) func(yield func([]uuid.UUID) bool) {
	return func(yield func([]uuid.UUID) bool) {
		var batch []uuid.UUID
		var size int64
		for _, f := range found {
			if size += f.Bytes; len(batch) > 0 && size > sealBytes {
				if !yield(batch) {
					return
				}
				batch, size = nil, f.Bytes
			}
			batch = append(batch, f.Email)
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}

// sealResult is what came of a batch.
type sealResult struct {
	// found are emails whose content is there, and sealed are those that were
	// written anew.
	found, sealed int
	// unreadable are those that could not be opened, by key. They stay as they are.
	unreadable map[string]int
}

const (
	// sqlLockContents keeps the rows as they are until they are written anew.
	sqlLockContents = `
SELECT ` + emailColumnsSQL + `, coalesce(c.html, ''), coalesce(c.text, ''), c.sealed_body, c.recipients
FROM outbox.email_contents c JOIN outbox.emails e ON e.id = c.email_id
WHERE c.email_id = ANY ($1::uuid[]) ORDER BY c.email_id FOR UPDATE OF c`

	sqlGetAttachments = `
SELECT ` + attachmentColumnsSQL + ` FROM outbox.attachments a WHERE a.email_id = ANY ($1::uuid[]) ORDER BY a.email_id, a.position`

	sqlSealContents = `
UPDATE outbox.email_contents c
SET from_address = NULL, to_addresses = NULL, cc_addresses = NULL, bcc_addresses = NULL, reply_to = NULL,
    subject = NULL, html = NULL, text = NULL, headers = NULL, metadata = NULL, recipients = NULL,
    suppressed_recipients = NULL, key_id = $1, sealed = i.sealed, sealed_body = i.sealed_body,
    suppressed_key_id = CASE WHEN i.suppressed IS NOT NULL THEN $1 END, sealed_suppressed = i.suppressed
FROM unnest($2::uuid[], $3::bytea[], $4::bytea[], $5::bytea[]) AS i (email_id, sealed, sealed_body, suppressed)
WHERE c.email_id = i.email_id`

	sqlSealAttachments = `
UPDATE outbox.attachments a
SET filename = NULL, content_type = NULL, content_id = NULL, content = NULL, key_id = $1, sealed = i.sealed
FROM unnest($2::uuid[], $3::smallint[], $4::bytea[]) AS i (email_id, position, sealed)
WHERE a.email_id = i.email_id AND a.position = i.position`
)

// seal writes emails anew under the first key, in one transaction.
func (s sealer) seal(ctx context.Context, ids []uuid.UUID) (result sealResult, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		stored, err := s.read(ctx, tx, ids)
		if err != nil {
			return err
		}
		result = sealResult{found: len(stored), unreadable: map[string]int{}}
		var open []emailRow
		suppressed := map[uuid.UUID][]string{}
		for _, e := range stored {
			row, err := e.row(s.keys)
			if unreadable, ok := errors.AsType[*SealError](err); ok {
				result.unreadable[unreadable.KeyID]++
				continue
			} else if err != nil {
				return err
			}
			if e.sealed.keyID != s.keys.first().id || e.sealed.suppressedKeyID != "" && e.sealed.suppressedKeyID != s.keys.first().id {
				open = append(open, row)
				suppressed[row.id] = e.SuppressedRecipients
			}
		}
		result.sealed = len(open)
		if len(open) == 0 {
			return nil
		}
		return s.write(ctx, tx, open, suppressed)
	})
	if err != nil {
		return sealResult{}, fmt.Errorf("seal emails: %w", err)
	}
	return result, nil
}

// storedEmail is an email as it is found.
type storedEmail struct {
	Email
	sealed      sealedEmail
	recipients  []string
	attachments []storedAttachment
}

// row opens the email, for it to be stored anew.
func (e *storedEmail) row(keys *KeyRing) (emailRow, error) {
	recipients := e.recipients
	opened, err := e.sealed.open(keys, &e.Email)
	if err != nil {
		return emailRow{}, err
	}
	if e.sealed.keyID != "" {
		recipients = opened
	}
	if e.Message.Attachments, err = openAttachments(keys, e.Org, e.attachments); err != nil {
		return emailRow{}, err
	}
	return emailRow{e.Org, &accepted{id: e.ID, message: &e.Message, recipients: e.Message.corrected(recipients)}}, nil
}

func (s sealer) read(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) ([]*storedEmail, error) {
	rows, err := tx.Query(ctx, sqlLockContents, ids)
	if err != nil {
		return nil, err
	}
	byID := map[uuid.UUID]*storedEmail{}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*storedEmail, error) {
		e := new(storedEmail)
		var body []byte
		var err error
		e.sealed, err = scanEmail(row, &e.Email, &e.Message.HTML, &e.Message.Text, &body, &e.recipients)
		e.sealed.body = body
		byID[e.ID] = e
		return e, err
	})
	if err != nil {
		return nil, err
	}
	if rows, err = tx.Query(ctx, sqlGetAttachments, ids); err != nil {
		return nil, err
	}
	attachments, err := pgx.CollectRows(rows, scanAttachment)
	for _, a := range attachments {
		if e := byID[a.Email]; e != nil {
			e.attachments = append(e.attachments, a)
		}
	}
	return list, err
}

func (s sealer) write(ctx context.Context, tx pgx.Tx, emails []emailRow, suppressed map[uuid.UUID][]string) error {
	key := s.keys.first()
	columns := newSealedColumns(len(emails))
	ids, left := make([]uuid.UUID, len(emails)), make([][]byte, len(emails))
	var owners []uuid.UUID
	var positions []int16
	var attachments [][]byte
	for i, e := range emails {
		if err := columns.set(i, key, e); err != nil {
			return err
		}
		k := key.of(e.org, e.id)
		if ids[i] = e.id; len(suppressed[e.id]) > 0 {
			left[i] = k.suppressed(suppressed[e.id])
		}
		for position, a := range e.message.Attachments {
			owners, positions = append(owners, e.id), append(positions, int16(position))
			attachments = append(attachments, k.attachment(position, a))
		}
	}
	var batch pgx.Batch
	batch.Queue(sqlSealContents, key.id, ids, columns.envelopes, columns.bodies, left)
	batch.Queue(sqlSealAttachments, key.id, owners, positions, attachments)
	batch.Queue(sqlForgetTerms, ids)
	batch.Queue(sqlInsertTerms, termColumns(key, emails)...)
	return tx.SendBatch(ctx, &batch).Close()
}

// sealStored seals an email that came in clear before anything is done with it.
func (d *deliverer) sealStored(ctx context.Context, e *delivery) (sealed bool, err error) {
	if d.cfg.Keys == nil || e.keyID != "" {
		return false, nil
	}
	result, err := sealer{d.pool, d.cfg.Keys}.seal(ctx, []uuid.UUID{e.ID})
	return result.found > 0, err
}

// SealStored seals what is stored in clear, and returns how many emails that was.
// Workers call it regularly.
func SealStored(ctx context.Context, pool *pgxpool.Pool, keys *KeyRing) (total int, err error) {
	if keys == nil {
		return 0, nil
	}
	s := sealer{pool, keys}
	err = s.each(ctx, sqlFindClear, nil, func(ids []uuid.UUID) error {
		result, err := s.seal(ctx, ids)
		total += result.sealed
		return err
	})
	return total, err
}

type sealArgs struct{ chore }

// Kind names the job in River.
func (sealArgs) Kind() string { return "seal_contents" }

type sealWorker struct {
	river.WorkerDefaults[sealArgs]
	pool *pgxpool.Pool
	keys *KeyRing
	log  *slog.Logger
}

// Work runs one job.
func (w *sealWorker) Work(ctx context.Context, _ *river.Job[sealArgs]) error {
	total, err := SealStored(ctx, w.pool, w.keys)
	if total > 0 {
		w.log.InfoContext(ctx, "sealed what was stored in clear", "count", total)
	}
	return err
}

// Rekeyed is what came of [Rekey].
type Rekeyed struct {
	// Sealed counts what was sealed under the first key: emails and webhooks.
	Sealed int `json:"sealed"`
	// Unreadable counts what could not be opened and stayed as it was, by the id of
	// its key.
	Unreadable map[string]int `json:"unreadable"`
}

// Rekey seals all content under the first key of the ring: what is in clear, and
// what is under another key. It works while others submit and deliver, in short
// transactions, and can be run again after it was cut off. progress is told how many
// are done; it may be nil.
func Rekey(ctx context.Context, pool *pgxpool.Pool, keys *KeyRing, progress func(done int)) (Rekeyed, error) {
	total := Rekeyed{Unreadable: map[string]int{}}
	if keys == nil {
		return total, errors.New("there is no key to seal with")
	}
	s := sealer{pool, keys}
	err := s.each(ctx, sqlFindStale, []any{keys.first().id}, func(ids []uuid.UUID) error {
		result, err := s.seal(ctx, ids)
		if err != nil {
			return err
		}
		total.Sealed += result.sealed
		for id, n := range result.unreadable {
			total.Unreadable[id] += n
		}
		if progress != nil {
			progress(total.Sealed)
		}
		return nil
	})
	if err != nil {
		return total, err
	}
	return total, s.webhooks(ctx, &total)
}

const (
	// sqlLockStaleSecrets finds the next webhook with a secret that is not under one
	// key, and keeps it as it is until that is written anew.
	sqlLockStaleSecrets = `
SELECT id, org_id, secret, coalesce(secret_key_id, ''), previous_secret, coalesce(previous_secret_key_id, '')
FROM outbox.webhooks
WHERE id > $2 AND (secret_key_id IS DISTINCT FROM $1
    OR previous_secret IS NOT NULL AND previous_secret_key_id IS DISTINCT FROM $1)
ORDER BY id LIMIT 1 FOR UPDATE`

	sqlSealSecrets = `
UPDATE outbox.webhooks
SET secret = $2, secret_key_id = $3, previous_secret = $4, previous_secret_key_id = nullif($5, '') WHERE id = $1`
)

// webhooks seals the secrets of all webhooks, one at a time: they are few.
func (s sealer) webhooks(ctx context.Context, total *Rekeyed) error {
	var after uuid.UUID
	for {
		var unreadable *SealError
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
			after, err = s.webhook(ctx, tx, after)
			return err
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case errors.As(err, &unreadable):
			total.Unreadable[unreadable.KeyID]++
		case err != nil:
			return fmt.Errorf("seal secrets of webhooks: %w", err)
		default:
			total.Sealed++
		}
	}
}

// webhook seals the secrets of the next one, and returns its id.
func (s sealer) webhook(ctx context.Context, tx pgx.Tx, after uuid.UUID) (id uuid.UUID, err error) {
	key := s.keys.first()
	var org uuid.UUID
	var stored, previous storedSecret
	err = tx.QueryRow(ctx, sqlLockStaleSecrets, key.id, after).
		Scan(&id, &org, &stored.bytes, &stored.keyID, &previous.bytes, &previous.keyID)
	if err != nil {
		return id, err
	}
	for _, secret := range []*storedSecret{&stored, &previous} {
		if secret.bytes == nil {
			continue
		}
		plain, err := secret.open(s.keys, org, id)
		if err != nil {
			return id, err
		}
		*secret = key.secret(org, id, plain)
	}
	_, err = tx.Exec(ctx, sqlSealSecrets, id, stored.bytes, stored.keyID, previous.bytes, previous.keyID)
	return id, err
}

// sqlKeyUse counts emails and webhooks, so that attachments do not count beside
// their email.
const sqlKeyUse = `
SELECT u.key_id, count(*) FROM (
    SELECT DISTINCT c.email_id, k.key_id
    FROM outbox.email_contents c, LATERAL (
        SELECT coalesce(c.key_id, '')
        UNION SELECT c.suppressed_key_id WHERE c.suppressed_key_id IS NOT NULL
        UNION SELECT coalesce(a.key_id, '') FROM outbox.attachments a WHERE a.email_id = c.email_id) AS k (key_id)
    UNION ALL
    SELECT DISTINCT w.id, coalesce(k.key_id, '')
    FROM outbox.webhooks w, LATERAL (VALUES (w.secret, w.secret_key_id), (w.previous_secret, w.previous_secret_key_id)) AS k (secret, key_id)
    WHERE k.secret IS NOT NULL) u
GROUP BY u.key_id`

// KeyUse counts emails and webhooks that a key seals something of, by its id. What is
// in clear is under the empty one.
func KeyUse(ctx context.Context, pool *pgxpool.Pool) (map[string]int, error) {
	rows, err := pool.Query(ctx, sqlKeyUse)
	if err != nil {
		return nil, fmt.Errorf("count keys: %w", err)
	}
	use := map[string]int{}
	var id string
	var n int
	if _, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		use[id] = n
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count keys: %w", err)
	}
	return use, nil
}
