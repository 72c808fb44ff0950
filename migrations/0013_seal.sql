-- +goose Up

-- Content may be sealed: encrypted by a key that Postgres does not have
-- (outbox/seal.go). A row is then in one of two forms, never in both. Tags stay in
-- clear, to search by.

ALTER TABLE outbox.email_contents
    ALTER from_address DROP NOT NULL, ALTER to_addresses DROP NOT NULL,
    ALTER subject DROP NOT NULL, ALTER recipients DROP NOT NULL,
    ADD key_id text,
    ADD sealed bytea,
    ADD sealed_body bytea,
    ADD suppressed_key_id text,
    ADD sealed_suppressed bytea,
    ADD CONSTRAINT email_contents_one_form CHECK (CASE
        WHEN key_id IS NULL THEN num_nulls(from_address, to_addresses, subject, recipients) = 0
            AND num_nonnulls(sealed, sealed_body, suppressed_key_id, sealed_suppressed) = 0
        ELSE num_nulls(sealed, sealed_body) = 0 AND num_nulls(suppressed_key_id, sealed_suppressed) <> 1
            AND num_nonnulls(from_address, to_addresses, cc_addresses, bcc_addresses, reply_to, subject, html, text,
                headers, metadata, recipients, suppressed_recipients) = 0
        END);
COMMENT ON COLUMN outbox.email_contents.key_id IS 'the key that sealed and sealed_body are under; null: the row is in clear';
COMMENT ON COLUMN outbox.email_contents.sealed IS 'addresses, subject, header fields, metadata; recipients';
COMMENT ON COLUMN outbox.email_contents.sealed_body IS 'html and text';
COMMENT ON COLUMN outbox.email_contents.sealed_suppressed IS 'suppressed_recipients, under suppressed_key_id';

-- What came in clear and is to be sealed, while there is a key.
CREATE INDEX email_contents_clear ON outbox.email_contents (email_id) WHERE key_id IS NULL;

ALTER TABLE outbox.attachments
    ALTER filename DROP NOT NULL, ALTER content DROP NOT NULL,
    ADD key_id text,
    ADD sealed bytea,
    ADD CONSTRAINT attachments_one_form CHECK (CASE
        WHEN key_id IS NULL THEN num_nulls(filename, content) = 0 AND sealed IS NULL
        ELSE sealed IS NOT NULL AND num_nonnulls(filename, content_type, content_id, content) = 0
        END);

ALTER TABLE outbox.webhooks
    ADD secret_key_id text,
    ADD previous_secret_key_id text;
COMMENT ON COLUMN outbox.webhooks.secret_key_id IS 'the key that secret is sealed under; null: it is in clear';
COMMENT ON COLUMN outbox.webhooks.previous_secret_key_id IS 'the same for previous_secret';
