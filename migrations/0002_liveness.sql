-- +goose Up

-- A worker process, from its start to the end of its session. It is alive as
-- long as its session holds the advisory lock; the row says who it is.
CREATE TABLE outbox.workers (
    id         text        PRIMARY KEY,
    lock_key   integer     NOT NULL,
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    version    text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz
);
COMMENT ON COLUMN outbox.workers.ended_at IS 'when it stopped by itself or was found dead; only the lock proves that it lives';
COMMENT ON COLUMN outbox.workers.lock_key IS 'second half of the advisory lock; the first is the namespace of workers';

ALTER TABLE outbox.attempts ADD COLUMN in_doubt_at timestamptz;
COMMENT ON COLUMN outbox.attempts.in_doubt_at IS 'since when it is known that nobody knows the outcome';

-- What is not over, for the sweep that gives every such email a live job.
CREATE INDEX emails_open ON outbox.emails (id) WHERE ended_at IS NULL;

-- What happened to an email besides its attempts; append only.
CREATE TABLE outbox.events (
    id          uuid        PRIMARY KEY,
    email_id    uuid        NOT NULL REFERENCES outbox.emails ON DELETE CASCADE,
    type        text        NOT NULL,
    provider    text,
    recipient   text,
    detail      text,
    occurred_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX events_email_id ON outbox.events (email_id, id);
