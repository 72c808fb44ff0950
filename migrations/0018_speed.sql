-- +goose Up

-- An update that changes no indexed column writes to no index, if there is room on the
-- page. The beginning of an attempt changes the status, which an index had; now that has
-- the phase, which stays. Where sending matters, the few that are sent are looked through.
ALTER TABLE outbox.emails
    ADD COLUMN phase text NOT NULL GENERATED ALWAYS AS (CASE WHEN status = 'sending' THEN 'queued' ELSE status END) STORED;
COMMENT ON COLUMN outbox.emails.phase IS 'the status, with sending counted as queued: what emails are looked up by';
DROP INDEX outbox.emails_org_id_status_id;
CREATE INDEX emails_org_id_phase_id ON outbox.emails (org_id, phase, id);

-- The end of an attempt changes what its indexes have, so there is nothing to leave room
-- for.
ALTER TABLE outbox.attempts RESET (fillfactor);

-- Nothing reads these two: River's own queries go by its other indexes, ours by
-- river_job_email_id, and River UI has no search in args or metadata. Each job that was
-- inserted, begun or completed wrote to both.
DROP INDEX IF EXISTS outbox.river_job_args_index, outbox.river_job_metadata_index;

-- By default a fifth of a table is dead before it is vacuumed, and of a million jobs that
-- is a lot to step over. These are the tables whose rows change or go.
ALTER TABLE outbox.emails SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE outbox.attempts SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE outbox.idempotency_keys SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
ALTER TABLE outbox.river_job SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.enqueue_lane(org uuid, waiting text, rank smallint) RETURNS smallint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN count(*) FILTER (WHERE newest.priority = rank) < 50 THEN rank ELSE 4::smallint END
    FROM (SELECT e.priority FROM outbox.emails AS e
        WHERE e.org_id = org AND e.phase = waiting ORDER BY e.id DESC LIMIT 200) AS newest
$$;

CREATE OR REPLACE FUNCTION outbox.enqueue_check_quota(org uuid) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    quota constant integer := (SELECT nullif(o.max_queued, 0) FROM outbox.orgs AS o WHERE o.id = org);
BEGIN
    IF quota IS NOT NULL AND quota <= (SELECT count(*) FROM (SELECT FROM outbox.emails AS e
            WHERE e.org_id = org AND e.phase IN ('scheduled', 'queued') LIMIT quota) AS waiting) THEN
        PERFORM outbox.enqueue_refuse('OB429', 'queue_quota_exceeded',
            format('%s emails of this org are waiting, and no more may.', quota),
            'Run the transaction again later, with the same key; or outboxctl org limit raises the quota.');
    END IF;
END $$;
-- +goose StatementEnd
