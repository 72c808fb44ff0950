-- +goose Up

-- Which database this is. The first worker records it; a worker that finds itself
-- in another one, such as a copy or a restored snapshot, holds what was submitted
-- before, because the original may be sending it. A migrated database that no
-- worker has run on has no row, so copies of it are nothing special.
CREATE TABLE outbox.installation (
    single            boolean     PRIMARY KEY DEFAULT true CHECK (single),
    name              text        CHECK (name <> ''),
    system_identifier bigint,
    database_oid      oid         NOT NULL,
    database_name     text        NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT now(),
    held_before       timestamptz,
    held_because      text,
    CHECK ((held_before IS NULL) = (held_because IS NULL))
);
COMMENT ON COLUMN outbox.installation.name IS 'OUTBOXD_INSTALLATION of its workers; null: none is set';
COMMENT ON COLUMN outbox.installation.system_identifier IS 'of the database cluster, pg_control_system(); null: the role may not read it';
COMMENT ON COLUMN outbox.installation.held_before IS 'emails submitted before wait for a person; null: the database is the one recorded';

ALTER TABLE outbox.emails ADD COLUMN released_at timestamptz;
COMMENT ON COLUMN outbox.emails.released_at IS 'when a person let an email of a restored database be sent; it counts as submitted then';
