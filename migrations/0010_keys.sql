-- +goose Up

ALTER TABLE outbox.api_keys
    ADD COLUMN last_used_at timestamptz,
    ADD COLUMN replaced_by text;
COMMENT ON COLUMN outbox.api_keys.last_used_at IS 'processes write it once a minute, so it may be a minute old';
COMMENT ON COLUMN outbox.api_keys.replaced_by IS 'the id of the key that was made when this one was rotated';
