-- +goose Up

-- How many emails of an org may wait; see outbox/quota.go.
ALTER TABLE outbox.orgs ADD COLUMN max_queued integer CHECK (max_queued >= 0);
COMMENT ON COLUMN outbox.orgs.max_queued IS
    'how many of its emails may be scheduled, queued or sending before submissions are refused; 0: any number; null: the installation''s';

-- +goose StatementBegin
-- The SQL function's look at the quota, for emails that are not replays. It counts
-- only where a quota is set, and no further than the quota. The installation's
-- default is the API's configuration, which is not known here.
CREATE FUNCTION outbox.enqueue_check_quota(org uuid) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    quota constant integer := (SELECT nullif(o.max_queued, 0) FROM outbox.orgs AS o WHERE o.id = org);
BEGIN
    IF quota IS NOT NULL AND quota <= (SELECT count(*) FROM (SELECT FROM outbox.emails AS e
            WHERE e.org_id = org AND e.status IN ('scheduled', 'queued', 'sending') LIMIT quota) AS waiting) THEN
        PERFORM outbox.enqueue_refuse('OB429', 'queue_quota_exceeded',
            format('%s emails of this org are waiting, and no more may.', quota),
            'Run the transaction again later, with the same key; or outboxctl org limit raises the quota.');
    END IF;
END $$;

-- What enqueue_store was, whatever it does, comes after the look.
ALTER FUNCTION outbox.enqueue_store(outbox.emails, jsonb, bytea[], timestamptz) RENAME TO enqueue_store_email;

CREATE FUNCTION outbox.enqueue_store(email outbox.emails, m jsonb, files bytea[], at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue_check_quota(email.org_id);
    PERFORM outbox.enqueue_store_email(email, m, files, at);
END $$;

REVOKE ALL ON FUNCTION outbox.enqueue_check_quota, outbox.enqueue_store FROM PUBLIC;
-- +goose StatementEnd
