-- +goose Up

-- What providers report about an attempt. The same event comes several times,
-- with other ids of the provider's, so what it says is what tells it apart.
ALTER TABLE outbox.events
    ADD COLUMN attempt smallint,
    ADD COLUMN permanent boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.events.attempt IS 'the attempt that it is about, by number; null: none';
COMMENT ON COLUMN outbox.events.permanent IS 'of a bounce: the address will never take mail';

-- On the email's own row, so that whoever changes the status sees it under the
-- row's lock, whichever of the two comes first.
ALTER TABLE outbox.emails ADD COLUMN reported smallint NOT NULL DEFAULT 1 CHECK (reported BETWEEN 1 AND 4);
COMMENT ON COLUMN outbox.emails.reported IS
    'the furthest that an accepted email has come by the events: 1 sent, 2 delivered, 3 bounced, 4 complained';

CREATE UNIQUE INDEX events_told_once ON outbox.events (
    email_id, attempt, type, coalesce(recipient, ''), occurred_at,
    (CASE WHEN type = 'clicked' THEN md5(coalesce(detail, '')) ELSE '' END)) WHERE provider IS NOT NULL;

-- Events find their attempt by our reference, or by the provider's id.
CREATE INDEX attempts_provider_key ON outbox.attempts USING hash (provider_key);
CREATE INDEX attempts_provider_message_id ON outbox.attempts USING hash (provider_message_id)
    WHERE provider_message_id IS NOT NULL;

-- Events of no attempt that is known: of another system on the same account, or
-- come before the id that would find them.
CREATE TABLE outbox.stray_events (
    id                  uuid        PRIMARY KEY,
    provider            text        NOT NULL,
    reference           uuid,
    provider_message_id text        NOT NULL,
    type                text        NOT NULL,
    recipient           text        NOT NULL,
    permanent           boolean     NOT NULL,
    whole_message       boolean     NOT NULL,
    detail              text        NOT NULL,
    occurred_at         timestamptz NOT NULL,
    received_at         timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX stray_events_told_once ON outbox.stray_events (
    provider, coalesce(reference::text, ''), provider_message_id, type, recipient, occurred_at,
    (CASE WHEN type = 'clicked' THEN md5(detail) ELSE '' END));
CREATE INDEX stray_events_received_at ON outbox.stray_events (received_at);
