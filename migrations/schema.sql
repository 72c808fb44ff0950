-- The schema that the migrations make, River's tables included, written by
-- go test ./migrations -update and checked by the same test. Not for running.

CREATE OR REPLACE FUNCTION outbox.enqueue_address_error(address text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    -- More is refused anyway, unread.
    bare constant text := outbox.enqueue_bare(left(address, 999));
    local constant text := substring(bare FROM '^(.*)@[^@]*$');
    domain constant text := substring(bare FROM '@([^@]*)$');
    is_ascii constant boolean := domain !~ '[^\u0001-\u007f]';
    is_quoted constant boolean := local LIKE '"%';
BEGIN
    IF outbox.enqueue_bytes(address) > 998 THEN
        RETURN 'is too long for an email address';
    ELSIF outbox.enqueue_has_control(address) THEN
        RETURN outbox.enqueue_no_control();
    ELSIF bare IS NULL THEN
        RETURN 'has a > without a <';
    ELSIF local IS NULL OR local = '' THEN
        RETURN 'is not an email address';
    ELSIF is_ascii AND (domain !~ '^[A-Za-z0-9.-]+$' OR domain !~ '\.' AND outbox.enqueue_lower(domain) <> 'localhost') THEN
        RETURN 'has no valid domain';
    ELSIF local ~ '[<> ]' OR NOT is_quoted AND (local ~ '[]()\[:;@\\,"]' OR '.' || local || '.' LIKE '%..%') THEN
        RETURN 'is not an email address';
    ELSIF outbox.enqueue_bytes(local) > 64 OR is_ascii AND NOT is_quoted AND outbox.enqueue_bytes(bare) > 254 THEN
        RETURN 'is too long for an email address';
    END IF;
    RETURN NULL;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_attachment_errors(field text, a jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_error_if(a ->> 'filename' = '', field || '.filename', 'is required')
        || (SELECT coalesce(jsonb_agg(jsonb_build_object('field', field || '.' || p.name, 'message', CASE
                WHEN outbox.enqueue_has_control(a ->> p.name) THEN outbox.enqueue_no_control()
                ELSE 'is longer than 256 bytes' END) ORDER BY p.place), '[]')
            FROM (VALUES (1, 'filename'), (2, 'content_type'), (3, 'content_id')) AS p (place, name)
            WHERE outbox.enqueue_has_control(a ->> p.name) OR outbox.enqueue_bytes(a ->> p.name) > 256)
        || outbox.enqueue_error_if(a ->> 'content_id' ~ '[<> ]', field || '.content_id', 'must not contain <, > or spaces')
        || outbox.enqueue_error_if(a ->> 'content_type' <> '' AND outbox.enqueue_trim(split_part(a ->> 'content_type', ';', 1))
            !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+/[!#$%&''*+.^_`|~0-9A-Za-z-]+$', field || '.content_type', 'is not a media type');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_attachments_field(attachments jsonb, files bytea[])
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field('attachment', a.value ->> 'filename')
        || outbox.enqueue_optional_field('content_type', a.value ->> 'content_type')
        || outbox.enqueue_optional_field('content_id', a.value ->> 'content_id')
        || outbox.enqueue_field('content', f.content), '' ORDER BY a.n), '')
    FROM jsonb_array_elements(attachments) WITH ORDINALITY AS a (value, n)
        JOIN unnest(files) WITH ORDINALITY AS f (content, n) USING (n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_bare(address text)
 RETURNS text
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
BEGIN
    RETURN (SELECT regexp_replace(
        CASE WHEN a.trimmed LIKE '%>' THEN substring(a.trimmed FROM '<([^<]*)>$') ELSE a.trimmed END, '(@[^@]*)\.$', '\1')
    FROM (SELECT outbox.enqueue_trim(address)) AS a (trimmed));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_byte_values(list jsonb)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(decode(string_agg(lpad(to_hex(v.value::integer), 2, '0'), '' ORDER BY v.n), 'hex'), '')
    FROM jsonb_array_elements_text(list) WITH ORDINALITY AS v (value, n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_bytes(value text)
 RETURNS integer
 LANGUAGE sql
 STABLE
AS $function$
    SELECT octet_length(convert_to(value, 'UTF8'))
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check(m jsonb)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_check_addresses(m) || outbox.enqueue_check_content(m) || outbox.enqueue_check_headers(m)
        || outbox.enqueue_check_attachments(m) || outbox.enqueue_check_labels(m) || outbox.enqueue_check_options(m)
        || outbox.enqueue_check_unsubscribe(m)
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_addresses(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT outbox.enqueue_error_if(m ->> 'from' = '', 'from', 'is required')
        || outbox.enqueue_error_if(m ->> 'from' <> '' AND n.from_error IS NOT NULL, 'from', n.from_error)
        || outbox.enqueue_error_if(m -> 'to' = '[]', 'to', 'is required')
        || outbox.enqueue_error_if(n.recipients > 50, 'to', format('has %s recipients with cc and bcc, more than 50', n.recipients))
        || outbox.enqueue_error_if(jsonb_array_length(m -> 'reply_to') > 50, 'reply_to', 'has more than 50 addresses')
        || (SELECT coalesce(jsonb_agg(jsonb_build_object('field', format('%s[%s]', l.name, a.n - 1), 'message', e.message)
                ORDER BY l.place, a.n), '[]')
            FROM (VALUES (1, 'to'), (2, 'cc'), (3, 'bcc'), (4, 'reply_to')) AS l (place, name),
                jsonb_array_elements_text(m -> l.name) WITH ORDINALITY AS a (address, n),
                outbox.enqueue_address_error(a.address) AS e (message)
            WHERE e.message IS NOT NULL AND jsonb_array_length(m -> 'reply_to') <= 50)
    FROM (SELECT jsonb_array_length(m -> 'to') + jsonb_array_length(m -> 'cc') + jsonb_array_length(m -> 'bcc'),
        outbox.enqueue_address_error(m ->> 'from')) AS n (recipients, from_error));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_attachments(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_error_if(jsonb_array_length(m -> 'attachments') > 100, 'attachments', 'has more than 100 files')
        || (SELECT coalesce(jsonb_agg(e.error ORDER BY a.n), '[]')
            FROM jsonb_array_elements(m -> 'attachments') WITH ORDINALITY AS a (value, n),
                jsonb_array_elements(outbox.enqueue_attachment_errors(format('attachments[%s]', a.n - 1), a.value)) AS e (error));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_content(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN CASE
            WHEN m ->> 'subject' = '' THEN outbox.enqueue_error('subject', 'is required')
            WHEN outbox.enqueue_has_control(m ->> 'subject') THEN outbox.enqueue_error('subject', outbox.enqueue_no_control())
            ELSE outbox.enqueue_error_if(outbox.enqueue_bytes(m ->> 'subject') > 2000, 'subject', 'is longer than 2000 bytes')
        END
        || outbox.enqueue_error_if(m ->> 'html' = '' AND m ->> 'text' = '', 'html', 'is required unless text is given');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_from(allowed text[], address text)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    domain constant text := outbox.enqueue_lower(substring(outbox.enqueue_bare(left(address, 999)) FROM '@([^@]*)$'));
BEGIN
    IF allowed <> '{}' AND outbox.enqueue_address_error(address) IS NULL AND domain <> ALL (allowed) THEN
        PERFORM outbox.enqueue_refuse('OB403', 'invalid_from_address',
            format('This org may not send from %s. Allowed: %s.', domain, array_to_string(allowed, ', ')),
            'Write an international domain in its ASCII form, xn--...');
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_headers(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT outbox.enqueue_error_if(count(*) > 50, 'headers', 'has more than 50 fields')
        || coalesce(jsonb_agg(jsonb_build_object('field', 'headers.' || outbox.enqueue_quote(h.key), 'message', h.message)
            ORDER BY h.key COLLATE "C") FILTER (WHERE h.message IS NOT NULL), '[]')
    FROM (
        SELECT key, outbox.enqueue_header_error(key, value,
            row_number() OVER (PARTITION BY outbox.enqueue_lower(key) ORDER BY key COLLATE "C") > 1)
        FROM jsonb_each_text(m -> 'headers')) AS h (key, message));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_key(required boolean, key text, ttl interval)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    IF key IS NULL AND required THEN
        PERFORM outbox.enqueue_refuse('OB400', 'missing_idempotency_key', 'This org requires an idempotency key.',
            'Pass idempotency_key: a name of what is submitted, such as receipt-<order id>.');
    ELSIF key !~ '^[ -~]{1,255}$' THEN
        PERFORM outbox.enqueue_refuse('OB400', 'invalid_idempotency_key',
            'The idempotency key must be 1 to 255 printable ASCII characters.', 'Pass null for none.');
    ELSIF ttl IS NULL OR ttl < interval '24 hours' THEN
        PERFORM outbox.enqueue_refuse_invalid(outbox.enqueue_error('idempotency_ttl', 'must be at least 24 hours'));
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_labels(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_error_if(jsonb_array_length(m -> 'tags') > 50, 'tags', 'has more than 50 tags')
        || (SELECT coalesce(jsonb_agg(jsonb_build_object('field', format('tags[%s].%s', t.n - 1, p.name),
                'message', 'must match ^[A-Za-z0-9_-]{1,256}$') ORDER BY t.n, p.name), '[]')
            FROM jsonb_array_elements(m -> 'tags') WITH ORDINALITY AS t (tag, n), (VALUES ('name'), ('value')) AS p (name)
            WHERE t.tag ->> p.name !~ '^[A-Za-z0-9_-]+$' OR length(t.tag ->> p.name) > 256)
        || (SELECT outbox.enqueue_error_if(count(DISTINCT d.key) > 50, 'metadata', 'has more than 50 members')
                || coalesce(jsonb_agg(e.error ORDER BY d.key COLLATE "C") FILTER (WHERE e.error IS NOT NULL), '[]')
            FROM jsonb_each_text(m -> 'metadata') AS d LEFT JOIN LATERAL jsonb_array_elements(
                outbox.enqueue_error_if(d.key = '' OR outbox.enqueue_bytes(d.key) > 256 OR outbox.enqueue_has_control(d.key),
                    'metadata.' || outbox.enqueue_quote(d.key), 'is not a valid name')
                || outbox.enqueue_error_if(outbox.enqueue_bytes(d.value) > 2000,
                    'metadata.' || outbox.enqueue_quote(d.key), 'is longer than 2000 bytes')) AS e (error) ON true);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_options(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_error_if(m ->> 'on_unknown' NOT IN ('', 'retry', 'hold', 'drop'), 'on_unknown', 'must be retry, hold or drop')
        || outbox.enqueue_error_if(m ->> 'priority' NOT IN ('', 'high', 'normal', 'low'), 'priority', 'must be high, normal or low')
        || outbox.enqueue_error_if(outbox.enqueue_has_control(m ->> 'provider') OR outbox.enqueue_bytes(m ->> 'provider') > 256,
            'provider', 'is not a provider''s name')
        || outbox.enqueue_error_if(outbox.enqueue_time(m ->> 'expires_at') <= outbox.enqueue_time(m ->> 'scheduled_at'),
            'expires_at', 'must be after scheduled_at');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_pause(org uuid)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    IF EXISTS (SELECT FROM outbox.orgs AS o WHERE o.id = org AND o.paused_at IS NOT NULL) THEN
        PERFORM outbox.enqueue_refuse('OB403', 'org_paused', 'This org is paused: nothing new is accepted.',
            'Submit again after outboxctl org resume, with the same key.');
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_quota(org uuid)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    quota constant integer := (SELECT nullif(o.max_queued, 0) FROM outbox.orgs AS o WHERE o.id = org);
BEGIN
    IF quota IS NOT NULL AND quota <= (SELECT count(*) FROM (SELECT FROM outbox.emails AS e
            WHERE e.org_id = org AND e.phase IN ('scheduled', 'queued') LIMIT quota) AS waiting) THEN
        PERFORM outbox.enqueue_refuse('OB429', 'queue_quota_exceeded',
            format('%s emails of this org are waiting, and no more may.', quota),
            'Run the transaction again later, with the same key; or outboxctl org limit raises the quota.');
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_times(scheduled_at timestamp with time zone, expires_at timestamp with time zone, at timestamp with time zone)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_error_if(scheduled_at < at, 'scheduled_at', 'is in the past')
        || outbox.enqueue_error_if(scheduled_at > at + interval '2160 hours', 'scheduled_at', 'is more than 90 days ahead')
        || outbox.enqueue_error_if(expires_at <= at, 'expires_at', 'is in the past');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_check_unsubscribe(m jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_claim(claim outbox.idempotency_keys)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO outbox.idempotency_keys AS k SELECT claim.*
    ON CONFLICT (org_id, endpoint, key) DO UPDATE SET
        submission_id = excluded.submission_id,
        fingerprint_version = excluded.fingerprint_version,
        fingerprint = excluded.fingerprint,
        email_ids = excluded.email_ids,
        status_code = excluded.status_code,
        response = excluded.response,
        created_at = excluded.created_at,
        expires_at = excluded.expires_at
    WHERE k.expires_at <= now() AND NOT EXISTS (
        SELECT FROM outbox.emails AS e
        WHERE e.id = ANY (k.email_ids) AND (e.ended_at IS NULL OR e.ended_at > now() - interval '24 hours'));
    RETURN found;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_claim_in_time(claim outbox.idempotency_keys)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF current_setting('lock_timeout') = '0' THEN
        RETURN outbox.enqueue_claim(claim);
    END IF;
    BEGIN
        RETURN outbox.enqueue_claim(claim);
    EXCEPTION WHEN lock_not_available THEN
        PERFORM outbox.enqueue_refuse_concurrent();
    END;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_cut(value text, bytes integer)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    short text := left(value, bytes);
BEGIN
    WHILE outbox.enqueue_bytes(short) > bytes LOOP
        short := left(short, -1);
    END LOOP;
    RETURN short;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode(message jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_byte_values(field text, list jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT outbox.enqueue_error_if(
        bool_or(v.value::text !~ '^(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$'), field, 'must be an array of byte values, 0 to 255')
    FROM jsonb_array_elements(list) AS v (value));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_dict(field text, value jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT CASE WHEN bool_or(jsonb_typeof(v.value) = 'null')
        THEN outbox.enqueue_error(field, 'has the wrong type: null is not accepted for a string in it')
        ELSE coalesce(jsonb_agg(outbox.enqueue_wrong_type(outbox.enqueue_path(field, v.key), v.value) -> 0)
            FILTER (WHERE jsonb_typeof(v.value) <> 'string'), '[]')
    END FROM jsonb_each(value) AS v);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_element(field text, value jsonb, kind text)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    errors jsonb;
BEGIN
    IF kind = 'strings' THEN
        RETURN outbox.enqueue_decode_value(field, value, 'string');
    ELSIF kind = 'tags' THEN
        RETURN outbox.enqueue_decode_members(field, value, '{"name": "string", "value": "string"}');
    END IF;
    errors := outbox.enqueue_decode_members(field, value, '{"filename": "string", "content": "file",
        "content_type": "string", "content_id": "string", "path": "string"}');
    IF errors <> '[]' THEN
        RETURN errors;
    ELSIF value ->> 'path' <> '' THEN
        RETURN outbox.enqueue_error(field || '.path', 'is not supported: outboxd fetches no URLs, send the file in content');
    END IF;
    RETURN outbox.enqueue_error_if(coalesce(jsonb_typeof(value -> 'content'), 'null') = 'null', field || '.content', 'is required');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_file(field text, content jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    kind constant text := jsonb_typeof(content);
    data constant jsonb := CASE kind WHEN 'array' THEN content WHEN 'object' THEN content -> 'data' END;
    encoded text;
BEGIN
    IF kind = 'string' THEN
        encoded := translate(content #>> '{}', E'\r\n', '');
        RETURN outbox.enqueue_error_if(length(encoded) % 4 <> 0 OR encoded !~ '^[A-Za-z0-9+/]*={0,2}$',
            field, 'must be base64 (RFC 4648, section 4, with padding)');
    ELSIF kind = 'array' THEN
        RETURN outbox.enqueue_decode_byte_values(field, data);
    ELSIF kind <> 'object' THEN
        RETURN outbox.enqueue_wrong_type(field, content);
    ELSIF content - 'type' - 'data' <> '{}' OR jsonb_typeof(content -> 'type') NOT IN ('string', 'null') THEN
        RETURN outbox.enqueue_decode_members(field, content - 'data', '{"type": "string"}');
    ELSIF jsonb_typeof(data) = 'array' AND content -> 'type' = '"Buffer"' THEN
        RETURN outbox.enqueue_decode_byte_values(field || '.data', data);
    ELSIF jsonb_typeof(data) <> 'array' THEN
        RETURN outbox.enqueue_error(field || '.data', 'must be an array of byte values, 0 to 255');
    END IF;
    RETURN outbox.enqueue_error(field, 'must be base64, an array of byte values or {"type":"Buffer","data":[...]}');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_members(parent text, value jsonb, members jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'object' THEN (
            SELECT coalesce(jsonb_agg(e.error), '[]')
            FROM jsonb_each(value) AS v,
                jsonb_array_elements(outbox.enqueue_decode_value(outbox.enqueue_path(parent, v.key), v.value, members ->> v.key))
                    AS e (error))
        WHEN 'null' THEN '[]'
        ELSE outbox.enqueue_wrong_type(parent, value)
    END;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_decode_value(field text, value jsonb, kind text)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_dict_field(name text, dict jsonb)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field(name, v.key) || outbox.enqueue_text_field('value', v.value), ''
        ORDER BY v.key COLLATE "C"), '')
    FROM jsonb_each_text(dict) AS v);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_email(org uuid, message jsonb, idempotency_key text DEFAULT NULL::text, idempotency_ttl interval DEFAULT '7 days'::interval)
 RETURNS uuid
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET "TimeZone" TO 'UTC'
 SET standard_conforming_strings TO 'on'
AS $function$
DECLARE
    at    constant timestamptz := clock_timestamp();
    owner constant outbox.orgs := outbox.enqueue_find_org(org);
    m     jsonb;
    files bytea[];
    email outbox.emails;
    late  jsonb;
    claim outbox.idempotency_keys;
BEGIN
    PERFORM outbox.enqueue_check_key(owner.require_idempotency_key, idempotency_key, idempotency_ttl);
    m := outbox.enqueue_decode(coalesce(message, 'null'));
    PERFORM outbox.enqueue_check_from(owner.from_domains, m ->> 'from');
    PERFORM outbox.enqueue_refuse_invalid(outbox.enqueue_check(m));
    files := outbox.enqueue_files(message);

    email.id := outbox.enqueue_new_id(at);
    email.org_id := org;
    email.created_at := date_trunc('milliseconds', at);
    email.scheduled_at := outbox.enqueue_time(m ->> 'scheduled_at');
    email.expires_at := outbox.enqueue_time(m ->> 'expires_at');
    email.status := CASE WHEN email.scheduled_at IS NULL THEN 'queued' ELSE 'scheduled' END;
    email.priority := outbox.enqueue_rank(m ->> 'priority');
    email.on_unknown := nullif(m ->> 'on_unknown', '');
    email.provider := nullif(m ->> 'provider', '');

    late := outbox.enqueue_check_times(email.scheduled_at, email.expires_at, at);
    IF idempotency_key IS NULL THEN
        PERFORM outbox.enqueue_refuse_invalid(late);
    ELSE
        claim := (org, 'POST /emails', idempotency_key, outbox.enqueue_new_id(at), 1, outbox.enqueue_fingerprint(org, m, files),
            ARRAY[email.id], 202, format('{"id":"%s","object":"email","status":"%s"}', email.id, email.status),
            now(), now() + idempotency_ttl);
        IF late <> '[]' OR NOT outbox.enqueue_claim_in_time(claim) THEN
            RETURN outbox.enqueue_replay(claim, late);
        END IF;
    END IF;
    PERFORM outbox.enqueue_store(email, m, files, at);
    RETURN email.id;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_error(field text, message text)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
    SELECT jsonb_build_array(jsonb_build_object('field', field, 'message', message))
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_error_if(wrong boolean, field text, message text)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
    SELECT CASE WHEN wrong THEN outbox.enqueue_error(field, message) ELSE '[]' END
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_field(name text, value bytea)
 RETURNS bytea
 LANGUAGE sql
 STABLE
AS $function$
    SELECT convert_to(format('%s:%s:', name, length(value)), 'UTF8') || value || '\x0a'::bytea
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_file(content jsonb)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN CASE jsonb_typeof(content)
        WHEN 'string' THEN decode(translate(content #>> '{}', E'\r\n', ''), 'base64')
        WHEN 'array' THEN outbox.enqueue_byte_values(content)
        ELSE outbox.enqueue_byte_values(content -> 'data')
    END;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_files(message jsonb)
 RETURNS bytea[]
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(array_agg(outbox.enqueue_file(a.value -> 'content') ORDER BY a.n), '{}')
    FROM jsonb_array_elements(CASE jsonb_typeof(message -> 'attachments') WHEN 'array' THEN message -> 'attachments' END)
        WITH ORDINALITY AS a (value, n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_find_org(org uuid)
 RETURNS outbox.orgs
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_fingerprint(org uuid, m jsonb, files bytea[])
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_has_control(value text)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT value ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]'
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_header_error(name text, value text, again boolean)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN CASE
        WHEN length(name) > 256 OR name !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' THEN 'is not a valid header name'
        WHEN outbox.enqueue_lower(name) IN ('from', 'to', 'cc', 'bcc', 'subject', 'reply-to', 'date', 'message-id',
            'return-path', 'mime-version', 'received') OR outbox.enqueue_lower(name) ~ '^(content|dkim)-'
            THEN 'is written by outboxd and cannot be set'
        WHEN again THEN 'is given twice'
        WHEN outbox.enqueue_has_control(value) THEN outbox.enqueue_no_control()
        WHEN outbox.enqueue_bytes(value) > 8000 THEN 'is longer than 8000 bytes'
    END;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_instant_field(name text, instant timestamp with time zone)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN outbox.enqueue_optional_field(name, (extract(epoch FROM instant) * 1000000)::bigint::text);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_lane(org uuid, waiting text, rank smallint)
 RETURNS smallint
 LANGUAGE sql
 STABLE
AS $function$
    SELECT CASE WHEN count(*) FILTER (WHERE newest.priority = rank) < 50 THEN rank ELSE 4::smallint END
    FROM (SELECT e.priority FROM outbox.emails AS e
        WHERE e.org_id = org AND e.phase = waiting ORDER BY e.id DESC LIMIT 200) AS newest
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_list(value jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'string' THEN jsonb_build_array(value)
        WHEN 'array' THEN (
            SELECT coalesce(jsonb_agg(coalesce(v.value, '') ORDER BY v.n), '[]')
            FROM jsonb_array_elements_text(value) WITH ORDINALITY AS v (value, n))
        ELSE '[]'
    END;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_list_field(name text, list jsonb)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field(name, v.value), '' ORDER BY v.n), '')
    FROM jsonb_array_elements_text(list) WITH ORDINALITY AS v (value, n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_lower(value text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT lower(value COLLATE "C")
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_new_id(at timestamp with time zone)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
BEGIN
    RETURN (SELECT encode(substring(int8send(t.micros / 1000) FROM 3)
        || int2send((28672 + t.micros % 1000 * 4096 / 1000)::smallint)
        || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM at) * 1000000)::bigint) AS t (micros));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_no_control()
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT 'must be UTF-8 without control characters'
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_normal(message jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_objects(list jsonb, members text[])
 RETURNS jsonb
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg((
        SELECT jsonb_object_agg(name, coalesce(v.value ->> name, '')) FROM unnest(members) AS name
    ) ORDER BY v.n), '[]')
    FROM jsonb_array_elements(CASE jsonb_typeof(list) WHEN 'array' THEN list END) WITH ORDINALITY AS v (value, n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_optional_field(name text, value text)
 RETURNS bytea
 LANGUAGE sql
 STABLE
AS $function$
    SELECT CASE WHEN value <> '' THEN outbox.enqueue_text_field(name, value) ELSE '' END
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_path(parent text, name text)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_cut(CASE
        WHEN name ~ '^[+-]?[0-9]{1,18}$' THEN parent || '[' || name || ']'
        WHEN parent = '' THEN name
        ELSE parent || '.' || name
    END, 200)
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_quote(name text)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_cut(regexp_replace(name, '[\u0001-\u001f\u007f-\u009f\u2028\u2029]', '', 'g'), 64)
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_rank(priority text)
 RETURNS smallint
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT (CASE priority WHEN 'high' THEN 1 WHEN 'low' THEN 3 ELSE 2 END)::smallint
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_recipients(m jsonb)
 RETURNS text[]
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN array_agg(r.address ORDER BY r.first) FROM (
        SELECT outbox.enqueue_lower(outbox.enqueue_bare(a.address)), min(a.n)
        FROM jsonb_array_elements_text((m -> 'to') || (m -> 'cc') || (m -> 'bcc')) WITH ORDINALITY AS a (address, n)
        GROUP BY 1) AS r (address, first);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_refuse(state text, name text, words text, hint text, errors jsonb DEFAULT '[]'::jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = name || ': ' || words, HINT = hint,
        DETAIL = jsonb_build_object('name', name, 'errors', errors)::text;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_refuse_concurrent()
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM outbox.enqueue_refuse('OB409', 'concurrent_idempotent_requests',
        'A submission with this idempotency key is in progress.', 'Run the transaction again, with the same key.');
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_refuse_invalid(errors jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF errors <> '[]' THEN
        PERFORM outbox.enqueue_refuse('OB422', 'validation_error', (
            SELECT string_agg(CASE WHEN e.field = '' THEN e.message ELSE e.field || ': ' || e.message END, '; ' ORDER BY e.n)
            FROM ROWS FROM (jsonb_to_recordset(errors) AS (field text, message text)) WITH ORDINALITY AS e (field, message, n)
        ), 'The DETAIL of this error lists the fields as JSON. Nothing was stored and the idempotency key is free.', errors);
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_replay(claim outbox.idempotency_keys, late jsonb)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
DECLARE
    stored outbox.idempotency_keys;
BEGIN
    SELECT * INTO stored FROM outbox.idempotency_keys AS k
    WHERE k.org_id = claim.org_id AND k.endpoint = claim.endpoint AND k.key = claim.key;
    IF stored.key IS NULL THEN
        PERFORM outbox.enqueue_refuse_invalid(late);
        -- The key expired between the claim and the look.
        PERFORM outbox.enqueue_refuse_concurrent();
    ELSIF stored.fingerprint_version <> claim.fingerprint_version THEN
        PERFORM outbox.enqueue_refuse('OB500', 'internal_server_error', format(
            'The idempotency key has fingerprint version %s, from a newer release.', stored.fingerprint_version),
            'Run outboxctl migrate up of that release.');
    ELSIF stored.fingerprint <> claim.fingerprint THEN
        PERFORM outbox.enqueue_refuse('OB422', 'invalid_idempotent_request',
            'This idempotency key was used for another request.',
            'Use a new key, or repeat the first request unchanged.');
    END IF;
    RETURN stored.email_ids[1];
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_store(email outbox.emails, m jsonb, files bytea[], at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM outbox.enqueue_check_pause(email.org_id);
    PERFORM outbox.enqueue_check_quota(email.org_id);
    PERFORM outbox.enqueue_store_email(email, m, files, at);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_store_content(email uuid, org uuid, m jsonb, files bytea[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
    found constant text[] := outbox.enqueue_recipients(m);
BEGIN
    INSERT INTO outbox.email_contents (
        email_id, org_id, from_address, to_addresses, cc_addresses, bcc_addresses, reply_to,
        subject, html, text, headers, tags, metadata, recipients, list_unsubscribe)
    VALUES (
        email, org, m ->> 'from', m -> 'to', nullif(m -> 'cc', '[]'), nullif(m -> 'bcc', '[]'), nullif(m -> 'reply_to', '[]'),
        m ->> 'subject', nullif(m ->> 'html', ''), nullif(m ->> 'text', ''), nullif(m -> 'headers', '{}'),
        nullif(m -> 'tags', '[]'), nullif(m -> 'metadata', '{}'), found, (m -> 'list_unsubscribe')::boolean);
    INSERT INTO outbox.email_terms (email_id, term)
    SELECT email, t.term FROM outbox.enqueue_terms(org, found, m -> 'tags') AS t (term);
    INSERT INTO outbox.attachments (email_id, position, filename, content_type, content_id, content)
    SELECT email, n - 1, a.value ->> 'filename', nullif(a.value ->> 'content_type', ''), nullif(a.value ->> 'content_id', ''), f.content
    FROM jsonb_array_elements(m -> 'attachments') WITH ORDINALITY AS a (value, n)
        JOIN unnest(files) WITH ORDINALITY AS f (content, n) USING (n);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_store_email(email outbox.emails, m jsonb, files bytea[], at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
    lane constant smallint := outbox.enqueue_lane(email.org_id, email.status, email.priority);
BEGIN
    INSERT INTO outbox.emails (id, org_id, status, priority, on_unknown, provider, created_at, scheduled_at, expires_at)
    VALUES (email.id, email.org_id, email.status, email.priority, email.on_unknown, email.provider,
        email.created_at, email.scheduled_at, email.expires_at);
    PERFORM outbox.enqueue_store_content(email.id, email.org_id, m, files);
    PERFORM outbox.enqueue_store_job(email.id, lane, email.scheduled_at, at);
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_store_job(email uuid, rank smallint, scheduled_at timestamp with time zone, at timestamp with time zone)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    INSERT INTO outbox.river_job (args, created_at, kind, max_attempts, priority, queue, scheduled_at, state)
    VALUES (jsonb_build_object('email_id', email), at, 'deliver_email', 10000, rank, 'emails', coalesce(scheduled_at, at),
        CASE WHEN scheduled_at IS NULL THEN 'available' ELSE 'scheduled' END::outbox.river_job_state);
    IF scheduled_at IS NULL THEN
        PERFORM pg_notify('outbox.river_insert', '{"queue": "emails"}');
    END IF;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_tags_field(tags jsonb)
 RETURNS bytea
 LANGUAGE plpgsql
 STABLE
AS $function$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field('tag', t.tag ->> 'name')
        || outbox.enqueue_text_field('value', t.tag ->> 'value'), '' ORDER BY t.n), '')
    FROM jsonb_array_elements(tags) WITH ORDINALITY AS t (tag, n));
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_term(org uuid, kind text, value text)
 RETURNS uuid
 LANGUAGE sql
 STABLE
AS $function$
    SELECT encode(substring(sha256(convert_to(E'outbox term 1\n' || kind || E'\n', 'UTF8') || uuid_send(org)
        || convert_to(value, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_terms(org uuid, recipients text[], tags jsonb)
 RETURNS SETOF uuid
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_term(org, 'to', r.address) FROM unnest(recipients) AS r (address)
    UNION
    SELECT outbox.enqueue_term(org, 'tag', v.value)
    FROM jsonb_array_elements(tags) AS t (tag),
        LATERAL (VALUES (t.tag ->> 'name'), ((t.tag ->> 'name') || ':' || (t.tag ->> 'value'))) AS v (value)
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_text_field(name text, value text)
 RETURNS bytea
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_field(name, convert_to(value, 'UTF8'))
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_time(value text)
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
DECLARE
    part text[] := regexp_match(value, '^([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])'
        'T((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(\.[0-9]+)?(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))$');
    moment timestamptz;
    zone interval;
BEGIN
    IF part IS NULL OR part[1] = '0000' OR part[3]::integer > extract(day FROM
        make_date(part[1]::integer, part[2]::integer, 1) + interval '1 month - 1 day') THEN
        RETURN NULL;
    END IF;
    -- Postgres takes no zone beyond 15:59, RFC 3339 does.
    zone := make_interval(hours => coalesce(part[7], '0')::integer, mins => coalesce(part[8], '0')::integer);
    moment := (left(value, 10) || ' ' || part[4] || coalesce(left(part[5], 7), '') || '+00')::timestamptz;
    moment := CASE WHEN part[6] = '-' THEN moment + zone ELSE moment - zone END;
    IF moment <= timestamptz '0001-01-01 00:00:00+00' OR moment >= timestamptz '10000-01-01 00:00:00+00' THEN
        RETURN NULL;
    END IF;
    RETURN moment;
END $function$


CREATE OR REPLACE FUNCTION outbox.enqueue_trim(value text)
 RETURNS text
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT btrim(value, E' \t\n\u000b\f\r\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000')
$function$


CREATE OR REPLACE FUNCTION outbox.enqueue_wrong_type(field text, value jsonb)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
AS $function$
    SELECT outbox.enqueue_error(field, 'has the wrong type: ' || CASE jsonb_typeof(value)
        WHEN 'null' THEN 'null' WHEN 'array' THEN 'an array' WHEN 'object' THEN 'an object'
        ELSE 'a ' || jsonb_typeof(value) END || ' is not accepted here')
$function$


CREATE OR REPLACE FUNCTION outbox.forget_terms(emails uuid[])
 RETURNS void
 LANGUAGE sql
AS $function$
    DELETE FROM outbox.email_terms t WHERE t.email_id = ANY (emails)
$function$


CREATE OR REPLACE FUNCTION outbox.river_job_state_in_bitmask(bitmask bit, state outbox.river_job_state)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
    SELECT CASE state
        WHEN 'available' THEN get_bit(bitmask, 7)
        WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5)
        WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending'   THEN get_bit(bitmask, 3)
        WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running'   THEN get_bit(bitmask, 1)
        WHEN 'scheduled' THEN get_bit(bitmask, 0)
        ELSE 0
    END = 1;
$function$


CREATE OR REPLACE FUNCTION outbox.webhook_on_event()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    PERFORM outbox.webhook_tell(e, 'email.' || NEW.type, NEW.id) FROM outbox.emails e WHERE e.id = NEW.email_id;
    RETURN NULL;
END $function$


CREATE OR REPLACE FUNCTION outbox.webhook_on_status()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    PERFORM outbox.webhook_tell(NEW,
        'email.' || CASE WHEN NEW.status IN ('failed', 'unknown') THEN NEW.status ELSE 'sent' END, NULL);
    RETURN NULL;
END $function$


CREATE OR REPLACE FUNCTION outbox.webhook_tell(email outbox.emails, kind text, event uuid)
 RETURNS void
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE TRIGGER webhook_on_event AFTER INSERT ON outbox.events FOR EACH ROW WHEN ((new.type = ANY (ARRAY['delivered'::text, 'delivery_delayed'::text, 'bounced'::text, 'complained'::text, 'opened'::text, 'clicked'::text]))) EXECUTE FUNCTION outbox.webhook_on_event()

CREATE TRIGGER webhook_on_status AFTER UPDATE OF status ON outbox.emails FOR EACH ROW WHEN ((((old.status <> new.status) AND (new.status = ANY (ARRAY['failed'::text, 'unknown'::text]))) OR ((old.status <> ALL (ARRAY['sent'::text, 'delivered'::text, 'bounced'::text, 'complained'::text])) AND (new.status = ANY (ARRAY['sent'::text, 'delivered'::text, 'bounced'::text, 'complained'::text]))))) EXECUTE FUNCTION outbox.webhook_on_status()

TABLE api_keys
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    id text NOT NULL
    org_id uuid NOT NULL
    name text NOT NULL DEFAULT ''::text
    secret_hash bytea NOT NULL
    scopes text[] NOT NULL
    from_domains text[] NOT NULL DEFAULT '{}'::text[]
    require_idempotency_key boolean NOT NULL DEFAULT false
    created_at timestamp with time zone NOT NULL DEFAULT now()
    expires_at timestamp with time zone
    revoked_at timestamp with time zone
    last_used_at timestamp with time zone
    replaced_by text
    api_keys_org_id_fkey FOREIGN KEY (org_id) REFERENCES outbox.orgs(id) ON DELETE CASCADE
    api_keys_pkey PRIMARY KEY (id)
    api_keys_scopes_check CHECK ((scopes <@ ARRAY['send'::text, 'read'::text, 'admin'::text]))

TABLE attachments
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ( SELECT true
       FROM outbox.emails e
      WHERE (e.id = attachments.email_id))
END
    email_id uuid NOT NULL
    position smallint NOT NULL
    filename text
    content_type text
    content_id text
    content bytea
    key_id text
    sealed bytea
    attachments_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    attachments_one_form CHECK (
CASE
    WHEN (key_id IS NULL) THEN ((num_nulls(filename, content) = 0) AND (sealed IS NULL))
    ELSE ((sealed IS NOT NULL) AND (num_nonnulls(filename, content_type, content_id, content) = 0))
END)
    attachments_pkey PRIMARY KEY (email_id, "position")

TABLE attempts WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ( SELECT true
       FROM outbox.emails e
      WHERE (e.id = attempts.email_id))
END
    email_id uuid NOT NULL
    number smallint NOT NULL
    provider text NOT NULL
    provider_key uuid NOT NULL
    stage text NOT NULL DEFAULT 'sending'::text
    worker text NOT NULL
    began_at timestamp with time zone NOT NULL
    deadline timestamp with time zone NOT NULL
    ended_at timestamp with time zone
    status_code integer
    code text
    detail text
    provider_message_id text
    possible_duplicate boolean NOT NULL DEFAULT false
    evidence text
    trace_id text
    payload_sha256 bytea NOT NULL
    in_doubt_at timestamp with time zone
    attempts_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    attempts_evidence_check CHECK ((evidence = ANY (ARRAY['response'::text, 'replay'::text, 'webhook'::text, 'search'::text, 'person'::text, 'policy'::text])))
    attempts_pkey PRIMARY KEY (email_id, number)
    attempts_stage_check CHECK ((stage = ANY (ARRAY['sending'::text, 'accepted'::text, 'rejected'::text, 'deferred'::text, 'unknown'::text])))
    CREATE INDEX attempts_provider_key ON outbox.attempts USING hash (provider_key)
    CREATE INDEX attempts_provider_message_id ON outbox.attempts USING hash (provider_message_id) WHERE (provider_message_id IS NOT NULL)
    CREATE UNIQUE INDEX attempts_one_open ON outbox.attempts USING btree (email_id) WHERE (stage = 'sending'::text)

TABLE email_contents
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    email_id uuid NOT NULL
    org_id uuid NOT NULL
    from_address text
    to_addresses jsonb
    cc_addresses jsonb
    bcc_addresses jsonb
    reply_to jsonb
    subject text
    html text
    text text
    headers jsonb
    tags jsonb
    metadata jsonb
    recipients text[]
    list_unsubscribe boolean NOT NULL DEFAULT false
    suppressed_recipients text[]
    key_id text
    sealed bytea
    sealed_body bytea
    suppressed_key_id text
    sealed_suppressed bytea
    email_contents_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    email_contents_one_form CHECK (
CASE
    WHEN (key_id IS NULL) THEN ((num_nulls(from_address, to_addresses, subject, recipients) = 0) AND (num_nonnulls(sealed, sealed_body, suppressed_key_id, sealed_suppressed) = 0))
    ELSE ((num_nulls(sealed, sealed_body) = 0) AND (num_nulls(suppressed_key_id, sealed_suppressed) <> 1) AND (num_nonnulls(from_address, to_addresses, cc_addresses, bcc_addresses, reply_to, subject, html, text, headers, metadata, recipients, suppressed_recipients) = 0))
END)
    email_contents_pkey PRIMARY KEY (email_id)
    CREATE INDEX email_contents_clear ON outbox.email_contents USING btree (email_id) WHERE (key_id IS NULL)
    CREATE INDEX email_contents_org_id_email_id ON outbox.email_contents USING btree (org_id, email_id)

TABLE email_terms
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ( SELECT true
       FROM outbox.emails e
      WHERE (e.id = email_terms.email_id))
END
    email_id uuid NOT NULL
    term uuid NOT NULL
    email_terms_pkey PRIMARY KEY (email_id, term)
    CREATE INDEX email_terms_term ON outbox.email_terms USING btree (term, email_id)

TABLE emails WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    id uuid NOT NULL
    org_id uuid NOT NULL
    status text NOT NULL
    priority smallint NOT NULL DEFAULT 2
    attempts smallint NOT NULL DEFAULT 0
    possible_duplicate boolean NOT NULL DEFAULT false
    on_unknown text
    provider text
    reason text
    reason_detail text
    created_at timestamp with time zone NOT NULL
    scheduled_at timestamp with time zone
    expires_at timestamp with time zone
    next_attempt_at timestamp with time zone
    ended_at timestamp with time zone
    reported smallint NOT NULL DEFAULT 1
    released_at timestamp with time zone
    content_purged_at timestamp with time zone
    phase text NOT NULL DEFAULT 
CASE
    WHEN (status = 'sending'::text) THEN 'queued'::text
    ELSE status
END
    emails_on_unknown_check CHECK ((on_unknown = ANY (ARRAY['retry'::text, 'hold'::text, 'drop'::text])))
    emails_pkey PRIMARY KEY (id)
    emails_priority_check CHECK (((priority >= 1) AND (priority <= 3)))
    emails_reported_check CHECK (((reported >= 1) AND (reported <= 4)))
    emails_status_check CHECK ((status = ANY (ARRAY['scheduled'::text, 'queued'::text, 'sending'::text, 'unknown'::text, 'sent'::text, 'delivered'::text, 'bounced'::text, 'complained'::text, 'failed'::text, 'canceled'::text, 'expired'::text, 'suppressed'::text])))
    CREATE INDEX emails_open ON outbox.emails USING btree (id) WHERE (ended_at IS NULL)
    CREATE INDEX emails_org_id_id ON outbox.emails USING btree (org_id, id)
    CREATE INDEX emails_org_id_phase_id ON outbox.emails USING btree (org_id, phase, id)

TABLE events
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ( SELECT true
       FROM outbox.emails e
      WHERE (e.id = events.email_id))
END
    id uuid NOT NULL
    email_id uuid NOT NULL
    type text NOT NULL
    provider text
    recipient text
    detail text
    occurred_at timestamp with time zone NOT NULL
    received_at timestamp with time zone NOT NULL DEFAULT now()
    attempt smallint
    permanent boolean NOT NULL DEFAULT false
    purged boolean NOT NULL DEFAULT false
    events_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    events_pkey PRIMARY KEY (id)
    CREATE INDEX events_email_id ON outbox.events USING btree (email_id, id)
    CREATE UNIQUE INDEX events_told_once ON outbox.events USING btree (email_id, attempt, type, COALESCE(recipient, ''::text), occurred_at, (
CASE
    WHEN (type = 'clicked'::text) THEN md5(COALESCE(detail, ''::text))
    ELSE ''::text
END)) WHERE ((provider IS NOT NULL) AND (NOT purged))

TABLE idempotency_keys WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000)
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    org_id uuid NOT NULL
    endpoint text NOT NULL
    key text NOT NULL
    submission_id uuid NOT NULL
    fingerprint_version smallint NOT NULL
    fingerprint bytea NOT NULL
    email_ids uuid[] NOT NULL
    status_code smallint NOT NULL
    response text NOT NULL
    created_at timestamp with time zone NOT NULL DEFAULT now()
    expires_at timestamp with time zone NOT NULL
    idempotency_keys_key_check CHECK (((length(key) >= 1) AND (length(key) <= 255)))
    idempotency_keys_pkey PRIMARY KEY (org_id, endpoint, key)
    CREATE INDEX idempotency_keys_expires_at ON outbox.idempotency_keys USING brin (expires_at) WITH (autosummarize='on')

TABLE installation
    single boolean NOT NULL DEFAULT true
    name text
    system_identifier bigint
    database_oid oid NOT NULL
    database_name text NOT NULL
    recorded_at timestamp with time zone NOT NULL DEFAULT now()
    held_before timestamp with time zone
    held_because text
    installation_check CHECK (((held_before IS NULL) = (held_because IS NULL)))
    installation_name_check CHECK ((name <> ''::text))
    installation_pkey PRIMARY KEY (single)
    installation_single_check CHECK (single)

TABLE orgs
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((id)::text = current_setting('outbox.org'::text, true))
END
    id uuid NOT NULL
    name text NOT NULL
    from_domains text[] NOT NULL DEFAULT '{}'::text[]
    require_idempotency_key boolean NOT NULL DEFAULT false
    on_unknown text
    created_at timestamp with time zone NOT NULL DEFAULT now()
    max_queued integer
    paused_at timestamp with time zone
    paused_reason text
    resumed_at timestamp with time zone
    deleted_at timestamp with time zone
    content_retention interval
    keep_content boolean NOT NULL DEFAULT false
    orgs_check CHECK (((paused_reason IS NULL) OR (paused_at IS NOT NULL)))
    orgs_content_retention_check CHECK ((content_retention > '00:00:00'::interval))
    orgs_max_queued_check CHECK ((max_queued >= 0))
    orgs_name_check CHECK (((name <> ''::text) AND (length(name) <= 100)))
    orgs_name_key UNIQUE (name)
    orgs_on_unknown_check CHECK ((on_unknown = ANY (ARRAY['retry'::text, 'hold'::text, 'drop'::text])))
    orgs_one_retention CHECK (((NOT keep_content) OR (content_retention IS NULL)))
    orgs_pkey PRIMARY KEY (id)
    CREATE UNIQUE INDEX orgs_name_key ON outbox.orgs USING btree (name)

TABLE providers WITH (fillfactor=50)
    name text NOT NULL
    reason text
    detail text
    failures integer NOT NULL DEFAULT 0
    out_since timestamp with time zone
    probe_at timestamp with time zone
    recovered_at timestamp with time zone
    next_slot timestamp with time zone
    providers_check CHECK ((((reason IS NULL) = (out_since IS NULL)) AND ((reason IS NULL) = (probe_at IS NULL))))
    providers_pkey PRIMARY KEY (name)
    providers_reason_check CHECK ((reason = ANY (ARRAY['rate_limited'::text, 'unavailable'::text, 'misconfigured'::text])))

TABLE river_job WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.05, autovacuum_vacuum_cost_delay=0)
    id bigint NOT NULL DEFAULT nextval('outbox.river_job_id_seq'::regclass)
    state outbox.river_job_state NOT NULL DEFAULT 'available'::outbox.river_job_state
    attempt smallint NOT NULL DEFAULT 0
    max_attempts smallint NOT NULL DEFAULT 25
    attempted_at timestamp with time zone
    created_at timestamp with time zone NOT NULL DEFAULT now()
    finalized_at timestamp with time zone
    scheduled_at timestamp with time zone NOT NULL DEFAULT now()
    priority smallint NOT NULL DEFAULT 1
    args jsonb NOT NULL
    attempted_by text[]
    errors jsonb[]
    kind text NOT NULL
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb
    queue text NOT NULL DEFAULT 'default'::text
    tags character varying(255)[] NOT NULL DEFAULT '{}'::character varying[]
    unique_key bytea
    unique_states bit(8)
    finalized_or_finalized_at_null CHECK ((((finalized_at IS NULL) AND (state <> ALL (ARRAY['cancelled'::outbox.river_job_state, 'completed'::outbox.river_job_state, 'discarded'::outbox.river_job_state]))) OR ((finalized_at IS NOT NULL) AND (state = ANY (ARRAY['cancelled'::outbox.river_job_state, 'completed'::outbox.river_job_state, 'discarded'::outbox.river_job_state])))))
    kind_length CHECK (((char_length(kind) > 0) AND (char_length(kind) < 128)))
    max_attempts_is_positive CHECK ((max_attempts > 0))
    priority_in_range CHECK (((priority >= 1) AND (priority <= 4)))
    queue_length CHECK (((char_length(queue) > 0) AND (char_length(queue) < 128)))
    river_job_pkey PRIMARY KEY (id)
    CREATE INDEX river_job_email_id ON outbox.river_job USING btree (((args ->> 'email_id'::text))) WHERE (kind = 'deliver_email'::text)
    CREATE INDEX river_job_kind ON outbox.river_job USING btree (kind)
    CREATE INDEX river_job_message_id ON outbox.river_job USING btree (((args ->> 'message_id'::text))) WHERE (kind = 'deliver_webhook'::text)
    CREATE INDEX river_job_prioritized_fetching_index ON outbox.river_job USING btree (state, queue, priority, scheduled_at, id)
    CREATE INDEX river_job_state_and_finalized_at_index ON outbox.river_job USING btree (state, finalized_at) WHERE (finalized_at IS NOT NULL)
    CREATE UNIQUE INDEX river_job_unique_idx ON outbox.river_job USING btree (unique_key) WHERE ((unique_key IS NOT NULL) AND (unique_states IS NOT NULL) AND outbox.river_job_state_in_bitmask(unique_states, state))

TABLE river_leader
    elected_at timestamp with time zone NOT NULL
    expires_at timestamp with time zone NOT NULL
    leader_id text NOT NULL
    name text NOT NULL DEFAULT 'default'::text
    leader_id_length CHECK (((char_length(leader_id) > 0) AND (char_length(leader_id) < 128)))
    name_length CHECK ((name = 'default'::text))
    river_leader_pkey PRIMARY KEY (name)

TABLE river_migration
    line text NOT NULL
    version bigint NOT NULL
    created_at timestamp with time zone NOT NULL DEFAULT now()
    line_length CHECK (((char_length(line) > 0) AND (char_length(line) < 128)))
    river_migration_pkey1 PRIMARY KEY (line, version)
    version_gte_1 CHECK ((version >= 1))

TABLE river_notification
    id bigint NOT NULL DEFAULT nextval('outbox.river_notification_id_seq'::regclass)
    created_at timestamp with time zone NOT NULL DEFAULT now()
    payload text NOT NULL
    topic text NOT NULL
    river_notification_pkey PRIMARY KEY (id)
    topic_length CHECK (((length(topic) > 0) AND (length(topic) < 128)))
    CREATE INDEX river_notification_created_at_idx ON outbox.river_notification USING btree (created_at)
    CREATE INDEX river_notification_topic_id_idx ON outbox.river_notification USING btree (topic, id)

TABLE river_queue
    name text NOT NULL
    created_at timestamp with time zone NOT NULL DEFAULT now()
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb
    paused_at timestamp with time zone
    updated_at timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP
    river_queue_pkey PRIMARY KEY (name)

TABLE stray_events
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE false
END
    id uuid NOT NULL
    provider text NOT NULL
    reference uuid
    provider_message_id text NOT NULL
    type text NOT NULL
    recipient text NOT NULL
    permanent boolean NOT NULL
    whole_message boolean NOT NULL
    detail text NOT NULL
    occurred_at timestamp with time zone NOT NULL
    received_at timestamp with time zone NOT NULL DEFAULT now()
    stray_events_pkey PRIMARY KEY (id)
    CREATE INDEX stray_events_received_at ON outbox.stray_events USING btree (received_at)
    CREATE UNIQUE INDEX stray_events_told_once ON outbox.stray_events USING btree (provider, COALESCE((reference)::text, ''::text), provider_message_id, type, recipient, occurred_at, (
CASE
    WHEN (type = 'clicked'::text) THEN md5(detail)
    ELSE ''::text
END))

TABLE suppressions
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    org_id uuid NOT NULL
    address text NOT NULL
    reason text NOT NULL
    detail text
    email_id uuid
    created_at timestamp with time zone NOT NULL DEFAULT now()
    suppressions_address_check CHECK ((address <> ''::text))
    suppressions_pkey PRIMARY KEY (org_id, address)
    suppressions_reason_check CHECK ((reason = ANY (ARRAY['hard_bounce'::text, 'complaint'::text, 'unsubscribe'::text, 'manual'::text])))
    CREATE INDEX suppressions_detail ON outbox.suppressions USING btree (email_id) WHERE ((detail IS NOT NULL) AND (email_id IS NOT NULL))

TABLE unsubscribe_secrets
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE false
END
    id smallint NOT NULL
    secret bytea NOT NULL
    used_from timestamp with time zone NOT NULL
    unsubscribe_secrets_pkey PRIMARY KEY (id)
    unsubscribe_secrets_secret_check CHECK ((octet_length(secret) = 32))

TABLE webhook_messages WITH (fillfactor=80)
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    id uuid NOT NULL
    webhook_id uuid NOT NULL
    org_id uuid NOT NULL
    type text NOT NULL
    email_id uuid NOT NULL
    event_id uuid
    attempt smallint
    reason text
    reason_detail text
    created_at timestamp with time zone NOT NULL
    attempts smallint NOT NULL DEFAULT 0
    next_attempt_at timestamp with time zone NOT NULL
    delivered_at timestamp with time zone
    failed_at timestamp with time zone
    last_status smallint
    last_error text
    webhook_messages_check CHECK (((delivered_at IS NULL) OR (failed_at IS NULL)))
    webhook_messages_pkey PRIMARY KEY (id)
    CREATE INDEX webhook_messages_open ON outbox.webhook_messages USING btree (next_attempt_at) WHERE ((delivered_at IS NULL) AND (failed_at IS NULL))
    CREATE INDEX webhook_messages_reason_detail ON outbox.webhook_messages USING btree (email_id) WHERE (reason_detail IS NOT NULL)
    CREATE INDEX webhook_messages_webhook_id_id ON outbox.webhook_messages USING btree (webhook_id, id)

TABLE webhooks
    FORCE ROW LEVEL SECURITY
    POLICY wall USING 
CASE
    WHEN (COALESCE(current_setting('outbox.org'::text, true), ''::text) = ''::text) THEN true
    ELSE ((org_id)::text = current_setting('outbox.org'::text, true))
END
    id uuid NOT NULL
    org_id uuid NOT NULL
    endpoint text NOT NULL
    events text[] NOT NULL
    status text NOT NULL DEFAULT 'enabled'::text
    disabled_reason text
    failing_since timestamp with time zone
    secret bytea NOT NULL
    previous_secret bytea
    previous_secret_until timestamp with time zone
    created_at timestamp with time zone NOT NULL
    secret_key_id text
    previous_secret_key_id text
    webhooks_check CHECK (((status = 'disabled'::text) = (disabled_reason IS NOT NULL)))
    webhooks_check1 CHECK (((previous_secret IS NULL) = (previous_secret_until IS NULL)))
    webhooks_disabled_reason_check CHECK ((disabled_reason = ANY (ARRAY['request'::text, 'gone'::text, 'failing'::text])))
    webhooks_endpoint_check CHECK (((endpoint <> ''::text) AND (length(endpoint) <= 2048)))
    webhooks_events_check CHECK ((events <> '{}'::text[]))
    webhooks_org_id_fkey FOREIGN KEY (org_id) REFERENCES outbox.orgs(id) ON DELETE CASCADE
    webhooks_pkey PRIMARY KEY (id)
    webhooks_status_check CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text])))
    CREATE INDEX webhooks_org_id_id ON outbox.webhooks USING btree (org_id, id)

TABLE workers
    id text NOT NULL
    lock_key integer NOT NULL
    host text NOT NULL
    pid integer NOT NULL
    version text NOT NULL
    started_at timestamp with time zone NOT NULL DEFAULT now()
    ended_at timestamp with time zone
    workers_pkey PRIMARY KEY (id)

TYPE river_job_state (available, cancelled, completed, discarded, pending, retryable, running, scheduled)
