-- +goose Up

-- How long the content of emails is kept after their end; see outbox/content_purge.go.
ALTER TABLE outbox.orgs
    ADD COLUMN content_retention interval CHECK (content_retention > interval '0'),
    ADD COLUMN keep_content      boolean  NOT NULL DEFAULT false,
    ADD CONSTRAINT orgs_one_retention CHECK (NOT keep_content OR content_retention IS NULL);
COMMENT ON COLUMN outbox.orgs.content_retention IS 'how long after an email''s end its content is kept; null: the installation''s, unless keep_content';
COMMENT ON COLUMN outbox.orgs.keep_content IS 'content is never purged';

ALTER TABLE outbox.emails ADD COLUMN content_purged_at timestamptz;
COMMENT ON COLUMN outbox.emails.content_purged_at IS 'when addresses, content and texts of providers were removed; null: they are here';

-- Without their recipients, events of one email may be the same: an email to two
-- people is delivered twice in one second. What is purged is told apart no more.
ALTER TABLE outbox.events ADD COLUMN purged boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.events.purged IS 'recipient and detail were removed with the content of the email';
DROP INDEX outbox.events_told_once;
CREATE UNIQUE INDEX events_told_once ON outbox.events (
    email_id, attempt, type, coalesce(recipient, ''), occurred_at,
    (CASE WHEN type = 'clicked' THEN md5(coalesce(detail, '')) ELSE '' END)) WHERE provider IS NOT NULL AND NOT purged;

-- What is to be purged is found by the contents that are left, of each org the oldest
-- first: contents that another org keeps are not read again and again.
CREATE INDEX email_contents_org_id_email_id ON outbox.email_contents (org_id, email_id);

-- These find texts that followed an email into tables with other orders. Few rows have
-- one.
CREATE INDEX webhook_messages_reason_detail ON outbox.webhook_messages (email_id) WHERE reason_detail IS NOT NULL;
CREATE INDEX suppressions_detail ON outbox.suppressions (email_id) WHERE detail IS NOT NULL AND email_id IS NOT NULL;
