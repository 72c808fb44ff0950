-- +goose Up

-- What all workers know of a provider account: whether it is in order, when one
-- email may try it again, and who may send when.
CREATE TABLE outbox.providers (
    name         text        PRIMARY KEY,
    reason       text        CHECK (reason IN ('rate_limited', 'unavailable', 'misconfigured')),
    detail       text,
    failures     integer     NOT NULL DEFAULT 0,
    out_since    timestamptz,
    probe_at     timestamptz,
    recovered_at timestamptz,
    next_slot    timestamptz,
    CHECK ((reason IS NULL) = (out_since IS NULL) AND (reason IS NULL) = (probe_at IS NULL))
) WITH (fillfactor = 50);
COMMENT ON COLUMN outbox.providers.reason IS 'why it was taken out; null: it is in order';
COMMENT ON COLUMN outbox.providers.detail IS 'the same in words, bounded and without addresses';
COMMENT ON COLUMN outbox.providers.failures IS 'how often in a row it was taken out, for the back-off';
COMMENT ON COLUMN outbox.providers.probe_at IS 'from when on one email may try it; the worker that does so moves it on';
COMMENT ON COLUMN outbox.providers.recovered_at IS 'when it was last put back; from then on its rate rises step by step';
COMMENT ON COLUMN outbox.providers.next_slot IS 'the first moment that no worker has taken for a send, where a rate is set';

-- +goose StatementBegin
-- The queue's priority of an email's job. An org's first emails of a priority go
-- by that priority; what it has waiting beyond its share goes last, so that one
-- org's flood does not hold up the others. Only the newest are counted.
CREATE FUNCTION outbox.enqueue_lane(org uuid, waiting text, rank smallint) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN count(*) FILTER (WHERE newest.priority = rank) < 50 THEN rank ELSE 4::smallint END
    FROM (SELECT e.priority FROM outbox.emails AS e
        WHERE e.org_id = org AND e.status = waiting ORDER BY e.id DESC LIMIT 200) AS newest
$$;
REVOKE ALL ON FUNCTION outbox.enqueue_lane FROM PUBLIC;

CREATE OR REPLACE FUNCTION outbox.enqueue_store(email outbox.emails, m jsonb, files bytea[], at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lane constant smallint := outbox.enqueue_lane(email.org_id, email.status, email.priority);
BEGIN
    INSERT INTO outbox.emails (id, org_id, status, priority, on_unknown, provider, created_at, scheduled_at, expires_at)
    VALUES (email.id, email.org_id, email.status, email.priority, email.on_unknown, email.provider,
        email.created_at, email.scheduled_at, email.expires_at);
    PERFORM outbox.enqueue_store_content(email.id, email.org_id, m, files);
    PERFORM outbox.enqueue_store_job(email.id, lane, email.scheduled_at, at);
END $$;
-- +goose StatementEnd
