-- +goose Up

-- Addresses that an org does not send to. Workers look here when an attempt
-- begins, so an address counts from the commit that puts it in.
CREATE TABLE outbox.suppressions (
    org_id     uuid        NOT NULL,
    address    text        NOT NULL COLLATE "C" CHECK (address <> ''),
    reason     text        NOT NULL CHECK (reason IN ('hard_bounce', 'complaint', 'unsubscribe', 'manual')),
    detail     text,
    email_id   uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, address)
);
COMMENT ON COLUMN outbox.suppressions.address IS 'bare, in lower case, its domain in ASCII, as in email_contents.recipients; ordered by bytes';
COMMENT ON COLUMN outbox.suppressions.detail IS 'the reason in words, without addresses: what a server said, or who put it in';
COMMENT ON COLUMN outbox.suppressions.email_id IS 'the email that led to it, which may be gone';

ALTER TABLE outbox.email_contents
    ADD COLUMN list_unsubscribe boolean NOT NULL DEFAULT false,
    ADD COLUMN suppressed_recipients text[];
COMMENT ON COLUMN outbox.email_contents.list_unsubscribe IS 'the email carries a List-Unsubscribe link of ours';
COMMENT ON COLUMN outbox.email_contents.suppressed_recipients IS
    'those of recipients that the newest attempt was begun without; null: none. A replay of it leaves out the same';

-- What links to unsubscribe are sealed with. A link works as long as its secret
-- is here, and links live in mailboxes for years: a new secret is added, and an
-- old one is only deleted to make its links void.
CREATE TABLE outbox.unsubscribe_secrets (
    id        smallint    PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    secret    bytea       NOT NULL CHECK (octet_length(secret) = 32),
    used_from timestamptz NOT NULL
);
COMMENT ON COLUMN outbox.unsubscribe_secrets.used_from IS
    'attempts that begin from then on use it. It lies ahead of the commit, so that an attempt and its replay agree';

INSERT INTO outbox.unsubscribe_secrets (secret, used_from)
VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), '-infinity');

-- The SQL door learns the field list_unsubscribe: its type, its rules, its place
-- in the fingerprint (none unless it is set, so that stored keys still replay)
-- and its column.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.enqueue_decode_value(field text, value jsonb, kind text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF kind IS NULL THEN
        RETURN outbox.enqueue_error(field, 'is not a known field');
    ELSIF jsonb_typeof(value) = 'null' THEN
        RETURN '[]';
    ELSIF kind = 'file' THEN
        RETURN outbox.enqueue_decode_file(field, value);
    ELSIF kind IN ('string', 'time') AND jsonb_typeof(value) = 'string' THEN
        RETURN outbox.enqueue_error_if(kind = 'time' AND value <> '""' AND outbox.enqueue_time(value #>> '{}') IS NULL,
            field, 'must be a time in RFC 3339, such as 2026-01-31T09:30:00Z');
    ELSIF kind = 'boolean' AND jsonb_typeof(value) = 'boolean' THEN
        RETURN '[]';
    ELSIF kind = 'strings' AND jsonb_typeof(value) = 'string' THEN
        RETURN '[]';
    ELSIF kind IN ('strings', 'tags', 'attachments') AND jsonb_typeof(value) = 'array' THEN
        RETURN (
            SELECT coalesce(jsonb_agg(e.error ORDER BY v.n), '[]')
            FROM jsonb_array_elements(value) WITH ORDINALITY AS v (element, n),
                jsonb_array_elements(outbox.enqueue_decode_element(field || '[' || v.n - 1 || ']', v.element, kind)) AS e (error));
    ELSIF kind = 'dict' AND jsonb_typeof(value) = 'object' THEN
        RETURN outbox.enqueue_decode_dict(field, value);
    END IF;
    RETURN outbox.enqueue_wrong_type(field, value);
END $$;

CREATE OR REPLACE FUNCTION outbox.enqueue_normal(message jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN jsonb_build_object(
        'from', coalesce(message ->> 'from', ''),
        'to', outbox.enqueue_list(message -> 'to'), 'cc', outbox.enqueue_list(message -> 'cc'),
        'bcc', outbox.enqueue_list(message -> 'bcc'), 'reply_to', outbox.enqueue_list(message -> 'reply_to'),
        'subject', coalesce(message ->> 'subject', ''),
        'html', coalesce(message ->> 'html', ''), 'text', coalesce(message ->> 'text', ''),
        'headers', coalesce(nullif(message -> 'headers', 'null'), '{}'),
        'metadata', coalesce(nullif(message -> 'metadata', 'null'), '{}'),
        'attachments', outbox.enqueue_objects(message -> 'attachments', '{filename,content_type,content_id}'),
        'tags', outbox.enqueue_objects(message -> 'tags', '{name,value}'),
        'scheduled_at', nullif(message ->> 'scheduled_at', ''), 'expires_at', nullif(message ->> 'expires_at', ''),
        'on_unknown', coalesce(message ->> 'on_unknown', ''), 'priority', coalesce(message ->> 'priority', ''),
        'provider', coalesce(message ->> 'provider', ''),
        'list_unsubscribe', coalesce(message -> 'list_unsubscribe' = 'true', false));
END $$;

CREATE OR REPLACE FUNCTION outbox.enqueue_decode(message jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- The HTTP API takes 10 MiB. Written out by jsonb, with a space after each
    -- comma, they can be half as much again.
    IF octet_length(message::text) > 15 * 1024 * 1024 THEN
        PERFORM outbox.enqueue_refuse('OB413', 'payload_too_large', 'The message is larger than 15 MiB.',
            'Send a link instead of the file.');
    ELSIF jsonb_typeof(message) NOT IN ('object', 'null') THEN
        PERFORM outbox.enqueue_refuse_invalid(outbox.enqueue_error('', 'the body must be a JSON object'));
    END IF;
    PERFORM outbox.enqueue_refuse_invalid(outbox.enqueue_decode_members('', message, '{
        "from": "string", "to": "strings", "cc": "strings", "bcc": "strings", "reply_to": "strings",
        "subject": "string", "html": "string", "text": "string", "headers": "dict", "metadata": "dict",
        "attachments": "attachments", "tags": "tags", "scheduled_at": "time", "expires_at": "time",
        "on_unknown": "string", "priority": "string", "provider": "string", "list_unsubscribe": "boolean"}'));
    RETURN outbox.enqueue_normal(message);
END $$;

-- One link cannot be right for several recipients, nor beside the sender's own.
CREATE FUNCTION outbox.enqueue_check_unsubscribe(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT (m -> 'list_unsubscribe')::boolean THEN
        RETURN '[]';
    END IF;
    RETURN outbox.enqueue_error_if(
            jsonb_array_length(m -> 'to') + jsonb_array_length(m -> 'cc') + jsonb_array_length(m -> 'bcc') <> 1,
            'list_unsubscribe', 'needs exactly one recipient: the link is for one')
        || outbox.enqueue_error_if(
            EXISTS (SELECT FROM jsonb_object_keys(m -> 'headers') AS h (name)
                WHERE outbox.enqueue_lower(h.name) IN ('list-unsubscribe', 'list-unsubscribe-post')),
            'list_unsubscribe', 'cannot be combined with a List-Unsubscribe header of your own');
END $$;
REVOKE ALL ON FUNCTION outbox.enqueue_check_unsubscribe FROM PUBLIC;

CREATE OR REPLACE FUNCTION outbox.enqueue_check(m jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_check_addresses(m) || outbox.enqueue_check_content(m) || outbox.enqueue_check_headers(m)
        || outbox.enqueue_check_attachments(m) || outbox.enqueue_check_labels(m) || outbox.enqueue_check_options(m)
        || outbox.enqueue_check_unsubscribe(m)
$$;

CREATE OR REPLACE FUNCTION outbox.enqueue_fingerprint(org uuid, m jsonb, files bytea[]) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN sha256(outbox.enqueue_text_field('version', '1')
        || outbox.enqueue_text_field('org', org::text)
        || outbox.enqueue_text_field('endpoint', 'POST /emails')
        || outbox.enqueue_text_field('email', '')
        || outbox.enqueue_optional_field('from', m ->> 'from')
        || outbox.enqueue_list_field('to', m -> 'to')
        || outbox.enqueue_list_field('cc', m -> 'cc')
        || outbox.enqueue_list_field('bcc', m -> 'bcc')
        || outbox.enqueue_list_field('reply_to', m -> 'reply_to')
        || outbox.enqueue_optional_field('subject', m ->> 'subject')
        || outbox.enqueue_optional_field('html', m ->> 'html')
        || outbox.enqueue_optional_field('text', m ->> 'text')
        || outbox.enqueue_dict_field('header', m -> 'headers')
        || outbox.enqueue_attachments_field(m -> 'attachments', files)
        || outbox.enqueue_tags_field(m -> 'tags')
        || outbox.enqueue_dict_field('metadata', m -> 'metadata')
        || outbox.enqueue_instant_field('scheduled_at', outbox.enqueue_time(m ->> 'scheduled_at'))
        || outbox.enqueue_instant_field('expires_at', outbox.enqueue_time(m ->> 'expires_at'))
        || outbox.enqueue_optional_field('on_unknown', m ->> 'on_unknown')
        || outbox.enqueue_optional_field('priority', m ->> 'priority')
        || outbox.enqueue_optional_field('provider', m ->> 'provider')
        || outbox.enqueue_optional_field('list_unsubscribe', nullif(m ->> 'list_unsubscribe', 'false')));
END $$;

CREATE OR REPLACE FUNCTION outbox.enqueue_store_content(email uuid, org uuid, m jsonb, files bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.email_contents (
        email_id, org_id, from_address, to_addresses, cc_addresses, bcc_addresses, reply_to,
        subject, html, text, headers, tags, metadata, recipients, list_unsubscribe)
    VALUES (
        email, org, m ->> 'from', m -> 'to', nullif(m -> 'cc', '[]'), nullif(m -> 'bcc', '[]'), nullif(m -> 'reply_to', '[]'),
        m ->> 'subject', nullif(m ->> 'html', ''), nullif(m ->> 'text', ''), nullif(m -> 'headers', '{}'),
        nullif(m -> 'tags', '[]'), nullif(m -> 'metadata', '{}'), outbox.enqueue_recipients(m),
        (m -> 'list_unsubscribe')::boolean);
    INSERT INTO outbox.attachments (email_id, position, filename, content_type, content_id, content)
    SELECT email, n - 1, a.value ->> 'filename', nullif(a.value ->> 'content_type', ''), nullif(a.value ->> 'content_id', ''), f.content
    FROM jsonb_array_elements(m -> 'attachments') WITH ORDINALITY AS a (value, n)
        JOIN unnest(files) WITH ORDINALITY AS f (content, n) USING (n);
END $$;
-- +goose StatementEnd
