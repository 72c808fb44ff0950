-- +goose Up

-- The life of an org. A paused one sends nothing and takes nothing new; one that
-- is deleted ends, and the row stays for a while so that a submission that was
-- being committed meanwhile finds no sender.
ALTER TABLE outbox.orgs
    ADD COLUMN paused_at     timestamptz,
    ADD COLUMN paused_reason text,
    ADD COLUMN resumed_at    timestamptz,
    ADD COLUMN deleted_at    timestamptz,
    ADD CHECK (paused_reason IS NULL OR paused_at IS NOT NULL);
COMMENT ON COLUMN outbox.orgs.paused_at IS 'since when its emails wait and submissions are refused; null: it is not paused';
COMMENT ON COLUMN outbox.orgs.paused_reason IS 'why, in the words of the person who did it';
COMMENT ON COLUMN outbox.orgs.resumed_at IS 'the end of the last pause: time in it does not count against giving up';
COMMENT ON COLUMN outbox.orgs.deleted_at IS 'since when it is being deleted: its keys are void and its emails end';

-- The SQL function knows no org that is being deleted, and lets a paused one submit
-- nothing but replays.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.enqueue_find_org(org uuid) RETURNS outbox.orgs LANGUAGE plpgsql STABLE AS $$
DECLARE
    known outbox.orgs;
BEGIN
    SELECT * INTO known FROM outbox.orgs AS o WHERE o.id = org AND o.deleted_at IS NULL;
    IF known.id IS NULL THEN
        PERFORM outbox.enqueue_refuse('OB404', 'not_found', format('There is no org %s.', coalesce(org::text, 'null')),
            'outboxctl org create makes one; outbox.orgs lists those that there are.',
            outbox.enqueue_error('org', 'does not exist'));
    END IF;
    RETURN known;
END $$;

CREATE FUNCTION outbox.enqueue_check_pause(org uuid) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox.orgs AS o WHERE o.id = org AND o.paused_at IS NOT NULL) THEN
        PERFORM outbox.enqueue_refuse('OB403', 'org_paused', 'This org is paused: nothing new is accepted.',
            'Submit again after outboxctl org resume, with the same key.');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.enqueue_store(email outbox.emails, m jsonb, files bytea[], at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue_check_pause(email.org_id);
    PERFORM outbox.enqueue_check_quota(email.org_id);
    PERFORM outbox.enqueue_store_email(email, m, files, at);
END $$;

REVOKE ALL ON FUNCTION outbox.enqueue_check_pause FROM PUBLIC;
-- +goose StatementEnd
