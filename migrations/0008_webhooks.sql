-- +goose Up

-- Where an org is told what becomes of its emails.
CREATE TABLE outbox.webhooks (
    id                    uuid        PRIMARY KEY,
    org_id                uuid        NOT NULL REFERENCES outbox.orgs ON DELETE CASCADE,
    endpoint              text        NOT NULL CHECK (endpoint <> '' AND length(endpoint) <= 2048),
    events                text[]      NOT NULL CHECK (events <> '{}'),
    status                text        NOT NULL DEFAULT 'enabled' CHECK (status IN ('enabled', 'disabled')),
    disabled_reason       text        CHECK (disabled_reason IN ('request', 'gone', 'failing')),
    failing_since         timestamptz,
    secret                bytea       NOT NULL,
    previous_secret       bytea,
    previous_secret_until timestamptz,
    created_at            timestamptz NOT NULL,
    CHECK ((status = 'disabled') = (disabled_reason IS NOT NULL)),
    CHECK ((previous_secret IS NULL) = (previous_secret_until IS NULL))
);
COMMENT ON COLUMN outbox.webhooks.events IS 'the types of messages that the endpoint gets, such as email.sent';
COMMENT ON COLUMN outbox.webhooks.disabled_reason IS 'request: by the org; gone: the endpoint answered 410; failing: it took nothing for days';
COMMENT ON COLUMN outbox.webhooks.failing_since IS 'when the first attempt failed after which none succeeded; null: the last one did';
COMMENT ON COLUMN outbox.webhooks.secret IS 'signs messages, so it cannot be stored as a hash';
COMMENT ON COLUMN outbox.webhooks.previous_secret IS 'signs beside the other until the receiver has changed over';

CREATE INDEX webhooks_org_id_id ON outbox.webhooks (org_id, id);

-- What is to be told, one row per webhook. It says which change of which email
-- it is about. Addresses, subject and metadata are not in it: the payload is
-- made of the email when it is sent, so that they are purged with the email.
-- There are no foreign keys, for the reason that the emails have none.
CREATE TABLE outbox.webhook_messages (
    id              uuid        PRIMARY KEY,
    webhook_id      uuid        NOT NULL,
    org_id          uuid        NOT NULL,
    type            text        NOT NULL,
    email_id        uuid        NOT NULL,
    event_id        uuid,
    attempt         smallint,
    reason          text,
    reason_detail   text,
    created_at      timestamptz NOT NULL,
    attempts        smallint    NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,
    delivered_at    timestamptz,
    failed_at       timestamptz,
    last_status     smallint,
    last_error      text,
    CHECK (delivered_at IS NULL OR failed_at IS NULL)
) WITH (fillfactor = 80);
COMMENT ON COLUMN outbox.webhook_messages.id IS 'UUIDv7, and the webhook-id of every request with this message';
COMMENT ON COLUMN outbox.webhook_messages.event_id IS 'what a provider reported; null: the email''s status changed';
COMMENT ON COLUMN outbox.webhook_messages.attempt IS 'the email''s attempt that led to the status';
COMMENT ON COLUMN outbox.webhook_messages.attempts IS 'requests made so far; since the last replay, if there was one';
COMMENT ON COLUMN outbox.webhook_messages.last_error IS 'why there was no status, in a word';

CREATE INDEX webhook_messages_webhook_id_id ON outbox.webhook_messages (webhook_id, id);
CREATE INDEX webhook_messages_open ON outbox.webhook_messages (next_attempt_at) WHERE delivered_at IS NULL AND failed_at IS NULL;

-- Messages are written by triggers, in the transaction of the change that they
-- report: whoever makes the change, none is forgotten and none reports what was
-- rolled back. The functions run with the rights of their owner, because a
-- missing right on these tables must not keep an outcome from being recorded.

-- +goose StatementBegin
-- The messages about an email, with River's jobs. Workers are notified where no
-- job is waiting; where one is they come for this one after it, and commits need
-- not queue up for the notification.
CREATE FUNCTION outbox.webhook_tell(email outbox.emails, kind text, event uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at   constant timestamptz := clock_timestamp();
    busy boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.webhooks w
        WHERE w.org_id = email.org_id AND w.status = 'enabled' AND kind = ANY (w.events)) THEN
        RETURN;
    END IF;
    busy := EXISTS (SELECT FROM outbox.river_job j
        WHERE j.state = 'available' AND j.queue = 'webhooks' AND j.scheduled_at <= at);
    WITH told AS (
        INSERT INTO outbox.webhook_messages (id, webhook_id, org_id, type, email_id, event_id, attempt,
            reason, reason_detail, created_at, next_attempt_at)
        SELECT outbox.enqueue_new_id(at), w.id, w.org_id, kind, email.id, event, ended_by.number,
            CASE WHEN event IS NULL THEN email.reason END, CASE WHEN event IS NULL THEN email.reason_detail END,
            date_trunc('milliseconds', at), at
        FROM outbox.webhooks w LEFT JOIN LATERAL (
            SELECT a.number FROM outbox.attempts a WHERE a.email_id = email.id AND event IS NULL
            ORDER BY a.stage = 'accepted' DESC, a.number DESC LIMIT 1) ended_by ON true
        WHERE w.org_id = email.org_id AND w.status = 'enabled' AND kind = ANY (w.events)
        RETURNING id
    )
    INSERT INTO outbox.river_job (args, created_at, kind, max_attempts, priority, queue, scheduled_at, state)
    SELECT jsonb_build_object('message_id', id), at, 'deliver_webhook', 10000, 2, 'webhooks', at, 'available'
    FROM told;
    IF NOT busy THEN
        PERFORM pg_notify('outbox.river_insert', '{"queue": "webhooks"}');
    END IF;
END $$;

-- A provider's event can come before our own record of the hand-over, and take
-- the email past sent: it was accepted all the same, and that is told.
CREATE FUNCTION outbox.webhook_on_status() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.webhook_tell(NEW,
        'email.' || CASE WHEN NEW.status IN ('failed', 'unknown') THEN NEW.status ELSE 'sent' END, NULL);
    RETURN NULL;
END $$;

CREATE FUNCTION outbox.webhook_on_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.webhook_tell(e, 'email.' || NEW.type, NEW.id) FROM outbox.emails e WHERE e.id = NEW.email_id;
    RETURN NULL;
END $$;

DO $$
DECLARE
    part regprocedure;
BEGIN
    FOR part IN SELECT oid FROM pg_catalog.pg_proc
        WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'webhook\_%' LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', part);
    END LOOP;
END $$;
-- +goose StatementEnd

CREATE TRIGGER webhook_on_status AFTER UPDATE OF status ON outbox.emails FOR EACH ROW
WHEN (OLD.status <> NEW.status AND NEW.status IN ('failed', 'unknown')
    OR OLD.status NOT IN ('sent', 'delivered', 'bounced', 'complained')
        AND NEW.status IN ('sent', 'delivered', 'bounced', 'complained'))
EXECUTE FUNCTION outbox.webhook_on_status();

CREATE TRIGGER webhook_on_event AFTER INSERT ON outbox.events FOR EACH ROW
WHEN (NEW.type IN ('delivered', 'delivery_delayed', 'bounced', 'complained', 'opened', 'clicked'))
EXECUTE FUNCTION outbox.webhook_on_event();
