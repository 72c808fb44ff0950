-- +goose Up

-- The sweep asks for each email that is not over whether a job will come for it,
-- and the housekeeping of webhooks for each message that is late. River's index
-- on the arguments answers that slowly while many jobs are new.
CREATE INDEX river_job_email_id ON outbox.river_job ((args ->> 'email_id')) WHERE kind = 'deliver_email';
CREATE INDEX river_job_message_id ON outbox.river_job ((args ->> 'message_id')) WHERE kind = 'deliver_webhook';
