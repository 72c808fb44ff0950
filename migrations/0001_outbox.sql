-- +goose Up

CREATE TABLE outbox.orgs (
    id                      uuid        PRIMARY KEY,
    name                    text        NOT NULL UNIQUE CHECK (name <> '' AND length(name) <= 100),
    from_domains            text[]      NOT NULL DEFAULT '{}',
    require_idempotency_key boolean     NOT NULL DEFAULT false,
    on_unknown              text        CHECK (on_unknown IN ('retry', 'hold', 'drop')),
    created_at              timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN outbox.orgs.from_domains IS 'domains that the org may send from; empty: any';
COMMENT ON COLUMN outbox.orgs.on_unknown IS 'default policy of the org''s emails; null: the installation''s';

CREATE TABLE outbox.api_keys (
    id                      text        PRIMARY KEY,
    org_id                  uuid        NOT NULL REFERENCES outbox.orgs ON DELETE CASCADE,
    name                    text        NOT NULL DEFAULT '',
    secret_hash             bytea       NOT NULL,
    scopes                  text[]      NOT NULL CHECK (scopes <@ ARRAY['send', 'read', 'admin']),
    from_domains            text[]      NOT NULL DEFAULT '{}',
    require_idempotency_key boolean     NOT NULL DEFAULT false,
    created_at              timestamptz NOT NULL DEFAULT now(),
    expires_at              timestamptz,
    revoked_at              timestamptz
);
COMMENT ON COLUMN outbox.api_keys.secret_hash IS 'SHA-256 of the secret, which has 190 bits of entropy and is stored nowhere';

-- The tables of the hot path refer to no org by a foreign key: each insert
-- would lock the org's row, and all of an org's submissions would meet there.

CREATE TABLE outbox.emails (
    id                 uuid        PRIMARY KEY,
    org_id             uuid        NOT NULL,
    status             text        NOT NULL CHECK (status IN (
                           'scheduled', 'queued', 'sending', 'unknown',
                           'sent', 'delivered', 'bounced', 'complained',
                           'failed', 'canceled', 'expired', 'suppressed')),
    priority           smallint    NOT NULL DEFAULT 2 CHECK (priority BETWEEN 1 AND 3),
    attempts           smallint    NOT NULL DEFAULT 0,
    possible_duplicate boolean     NOT NULL DEFAULT false,
    on_unknown         text        CHECK (on_unknown IN ('retry', 'hold', 'drop')),
    provider           text,
    reason             text,
    reason_detail      text,
    created_at         timestamptz NOT NULL,
    scheduled_at       timestamptz,
    expires_at         timestamptz,
    next_attempt_at    timestamptz,
    ended_at           timestamptz
) WITH (fillfactor = 80);
COMMENT ON COLUMN outbox.emails.id IS 'UUIDv7: ordered by the time of submission';
COMMENT ON COLUMN outbox.emails.created_at IS 'the time in the id';
COMMENT ON COLUMN outbox.emails.priority IS '1 high, 2 normal, 3 low';
COMMENT ON COLUMN outbox.emails.attempts IS 'attempts begun so far; the fence for beginning the next';
COMMENT ON COLUMN outbox.emails.provider IS 'the provider that the sender pinned; null: any';
COMMENT ON COLUMN outbox.emails.reason IS 'why the status is what it is, where the status alone does not say';
COMMENT ON COLUMN outbox.emails.reason_detail IS 'the same in words, bounded and without addresses';
COMMENT ON COLUMN outbox.emails.ended_at IS 'when the email reached sent or another status that delivery does not leave';

CREATE INDEX emails_org_id_id ON outbox.emails (org_id, id);
CREATE INDEX emails_org_id_status_id ON outbox.emails (org_id, status, id);

-- Content stays apart from the rows that delivery updates, so that an update
-- never copies a body, and so that content can be purged before its email.

CREATE TABLE outbox.email_contents (
    email_id      uuid   PRIMARY KEY REFERENCES outbox.emails ON DELETE CASCADE,
    org_id        uuid   NOT NULL,
    from_address  text   NOT NULL,
    to_addresses  jsonb  NOT NULL,
    cc_addresses  jsonb,
    bcc_addresses jsonb,
    reply_to      jsonb,
    subject       text   NOT NULL,
    html          text,
    text          text,
    headers       jsonb,
    tags          jsonb,
    metadata      jsonb,
    recipients    text[] NOT NULL
);
COMMENT ON COLUMN outbox.email_contents.to_addresses IS 'as submitted: addr or Name <addr>';
COMMENT ON COLUMN outbox.email_contents.recipients IS 'bare addresses of To, Cc and Bcc in lower case, to search by';

CREATE INDEX email_contents_recipients ON outbox.email_contents USING gin (recipients);
CREATE INDEX email_contents_tags ON outbox.email_contents USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL;

CREATE TABLE outbox.attachments (
    email_id     uuid     NOT NULL REFERENCES outbox.emails ON DELETE CASCADE,
    position     smallint NOT NULL,
    filename     text     NOT NULL,
    content_type text,
    content_id   text,
    content      bytea    NOT NULL,
    PRIMARY KEY (email_id, position)
);

CREATE TABLE outbox.attempts (
    email_id            uuid        NOT NULL REFERENCES outbox.emails ON DELETE CASCADE,
    number              smallint    NOT NULL,
    provider            text        NOT NULL,
    provider_key        uuid        NOT NULL,
    stage               text        NOT NULL DEFAULT 'sending' CHECK (stage IN (
                            'sending', 'accepted', 'rejected', 'deferred', 'unknown')),
    worker              text        NOT NULL,
    began_at            timestamptz NOT NULL,
    deadline            timestamptz NOT NULL,
    ended_at            timestamptz,
    status_code         integer,
    code                text,
    detail              text,
    provider_message_id text,
    possible_duplicate  boolean     NOT NULL DEFAULT false,
    evidence            text        CHECK (evidence IN (
                            'response', 'replay', 'webhook', 'search', 'person', 'policy')),
    trace_id            text,
    payload_sha256      bytea       NOT NULL,
    PRIMARY KEY (email_id, number)
) WITH (fillfactor = 80);
COMMENT ON COLUMN outbox.attempts.provider_key IS 'the idempotency key, and the reference, that the provider sees';
COMMENT ON COLUMN outbox.attempts.worker IS 'the worker process that began the attempt and owns it';
COMMENT ON COLUMN outbox.attempts.deadline IS 'from when on the owner no longer sends nor waits for a reply';
COMMENT ON COLUMN outbox.attempts.payload_sha256 IS 'of the bytes handed over; a resend under the same key must match';

-- Two open attempts of one email would be two mails: the database refuses.
CREATE UNIQUE INDEX attempts_one_open ON outbox.attempts (email_id) WHERE stage = 'sending';

CREATE TABLE outbox.idempotency_keys (
    org_id              uuid        NOT NULL,
    endpoint            text        NOT NULL,
    key                 text        NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    submission_id       uuid        NOT NULL,
    fingerprint_version smallint    NOT NULL,
    fingerprint         bytea       NOT NULL,
    email_ids           uuid[]      NOT NULL,
    status_code         smallint    NOT NULL,
    response            text        NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz NOT NULL,
    PRIMARY KEY (org_id, endpoint, key)
);
-- Keys are inserted in the order in which they expire, so the smallest of
-- indexes finds those to purge.
CREATE INDEX idempotency_keys_expires_at ON outbox.idempotency_keys USING brin (expires_at) WITH (autosummarize = on);

COMMENT ON COLUMN outbox.idempotency_keys.submission_id IS 'tells the submission that won the key from those that replay it';
COMMENT ON COLUMN outbox.idempotency_keys.response IS 'the body of the first answer, replayed byte for byte';
