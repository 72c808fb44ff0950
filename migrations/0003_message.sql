-- +goose Up

-- How the SQL function outbox.enqueue_email reads and checks a message: the body
-- of POST /emails, with the same leniencies, limits and words as the HTTP API
-- (api/decode.go, outbox/validate.go). What is judged here is the shape. What
-- only Go can judge (address syntax in depth, IDNA, a provider's limits) is
-- judged before the first attempt, so a check here never refuses what Go
-- accepts. Tests hold the two together.
--
-- The functions are parts of enqueue_email and nobody else's to call. A check
-- returns what is wrong as an array of {"field","message"}; an empty one: nothing.
-- What is in language sql is small enough for the planner to inline; anything
-- else would be planned again at each call.

-- SQLSTATE is OB and the status that the HTTP API answers with.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_refuse(state text, name text, words text, hint text, errors jsonb DEFAULT '[]')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = name || ': ' || words, HINT = hint,
        DETAIL = jsonb_build_object('name', name, 'errors', errors)::text;
END $$;

CREATE FUNCTION outbox.enqueue_refuse_invalid(errors jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF errors <> '[]' THEN
        PERFORM outbox.enqueue_refuse('OB422', 'validation_error', (
            SELECT string_agg(CASE WHEN e.field = '' THEN e.message ELSE e.field || ': ' || e.message END, '; ' ORDER BY e.n)
            FROM ROWS FROM (jsonb_to_recordset(errors) AS (field text, message text)) WITH ORDINALITY AS e (field, message, n)
        ), 'The DETAIL of this error lists the fields as JSON. Nothing was stored and the idempotency key is free.', errors);
    END IF;
END $$;

CREATE FUNCTION outbox.enqueue_error(field text, message text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(jsonb_build_object('field', field, 'message', message))
$$;

-- The error if the condition holds; one that cannot be decided does not hold.
CREATE FUNCTION outbox.enqueue_error_if(wrong boolean, field text, message text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN wrong THEN outbox.enqueue_error(field, message) ELSE '[]' END
$$;
-- +goose StatementEnd

-- Text, as Go sees it: bytes of UTF-8, Unicode's white space and control
-- characters, letters that only ASCII has in two cases.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_bytes(value text) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT octet_length(convert_to(value, 'UTF8'))
$$;

CREATE FUNCTION outbox.enqueue_has_control(value text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT value ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]'
$$;

CREATE FUNCTION outbox.enqueue_no_control() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'must be UTF-8 without control characters'
$$;

CREATE FUNCTION outbox.enqueue_trim(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT btrim(value, E' \t\n\u000b\f\r\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000')
$$;

CREATE FUNCTION outbox.enqueue_lower(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT lower(value COLLATE "C")
$$;

-- The first characters that fit into so many bytes.
CREATE FUNCTION outbox.enqueue_cut(value text, bytes integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    short text := left(value, bytes);
BEGIN
    WHILE outbox.enqueue_bytes(short) > bytes LOOP
        short := left(short, -1);
    END LOOP;
    RETURN short;
END $$;

-- A member of an object the way people write fields: headers.X-A, content[3].
CREATE FUNCTION outbox.enqueue_path(parent text, name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_cut(CASE
        WHEN name ~ '^[+-]?[0-9]{1,18}$' THEN parent || '[' || name || ']'
        WHEN parent = '' THEN name
        ELSE parent || '.' || name
    END, 200)
$$;

-- The same for a name that was judged and found wrong: bounded and clean.
CREATE FUNCTION outbox.enqueue_quote(name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_cut(regexp_replace(name, '[\u0001-\u001f\u007f-\u009f\u2028\u2029]', '', 'g'), 64)
$$;

-- RFC 3339 to the letter, cut to microseconds; null for anything else. The time
-- must be one that RFC 3339 can write in UTC too, and not the year 1's first
-- moment, which means none in Go.
CREATE FUNCTION outbox.enqueue_time(value text) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE AS $$
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
END $$;
-- +goose StatementEnd

-- Files: base64, an array of byte values, or what Node makes of a Buffer.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_byte_values(list jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(decode(string_agg(lpad(to_hex(v.value::integer), 2, '0'), '' ORDER BY v.n), 'hex'), '')
    FROM jsonb_array_elements_text(list) WITH ORDINALITY AS v (value, n));
END $$;

CREATE FUNCTION outbox.enqueue_file(content jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE jsonb_typeof(content)
        WHEN 'string' THEN decode(translate(content #>> '{}', E'\r\n', ''), 'base64')
        WHEN 'array' THEN outbox.enqueue_byte_values(content)
        ELSE outbox.enqueue_byte_values(content -> 'data')
    END;
END $$;

CREATE FUNCTION outbox.enqueue_files(message jsonb) RETURNS bytea[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(array_agg(outbox.enqueue_file(a.value -> 'content') ORDER BY a.n), '{}')
    FROM jsonb_array_elements(CASE jsonb_typeof(message -> 'attachments') WHEN 'array' THEN message -> 'attachments' END)
        WITH ORDINALITY AS a (value, n));
END $$;

CREATE FUNCTION outbox.enqueue_decode_byte_values(field text, list jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT outbox.enqueue_error_if(
        bool_or(v.value::text !~ '^(0|[1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$'), field, 'must be an array of byte values, 0 to 255')
    FROM jsonb_array_elements(list) AS v (value));
END $$;

CREATE FUNCTION outbox.enqueue_decode_file(field text, content jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;
-- +goose StatementEnd

-- Decoding: names and types. Null is the same as absent.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_wrong_type(field text, value jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_error(field, 'has the wrong type: ' || CASE jsonb_typeof(value)
        WHEN 'null' THEN 'null' WHEN 'array' THEN 'an array' WHEN 'object' THEN 'an object'
        ELSE 'a ' || jsonb_typeof(value) END || ' is not accepted here')
$$;

CREATE FUNCTION outbox.enqueue_decode_value(field text, value jsonb, kind text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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

-- members says which an object may have, and the kind of each.
CREATE FUNCTION outbox.enqueue_decode_members(parent text, value jsonb, members jsonb)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_decode_element(field text, value jsonb, kind text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;

-- An empty header is not an absent one, so null is no string here.
CREATE FUNCTION outbox.enqueue_decode_dict(field text, value jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT CASE WHEN bool_or(jsonb_typeof(v.value) = 'null')
        THEN outbox.enqueue_error(field, 'has the wrong type: null is not accepted for a string in it')
        ELSE coalesce(jsonb_agg(outbox.enqueue_wrong_type(outbox.enqueue_path(field, v.key), v.value) -> 0)
            FILTER (WHERE jsonb_typeof(v.value) <> 'string'), '[]')
    END FROM jsonb_each(value) AS v);
END $$;

CREATE FUNCTION outbox.enqueue_list(value jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE jsonb_typeof(value)
        WHEN 'string' THEN jsonb_build_array(value)
        WHEN 'array' THEN (
            SELECT coalesce(jsonb_agg(coalesce(v.value, '') ORDER BY v.n), '[]')
            FROM jsonb_array_elements_text(value) WITH ORDINALITY AS v (value, n))
        ELSE '[]'
    END;
END $$;

-- The objects of a list with exactly these members, all strings.
CREATE FUNCTION outbox.enqueue_objects(list jsonb, members text[]) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg((
        SELECT jsonb_object_agg(name, coalesce(v.value ->> name, '')) FROM unnest(members) AS name
    ) ORDER BY v.n), '[]')
    FROM jsonb_array_elements(CASE jsonb_typeof(list) WHEN 'array' THEN list END) WITH ORDINALITY AS v (value, n));
END $$;

-- One form for all spellings: every member is there but for times, lists are
-- lists, empty is absent. Files are apart (enqueue_files).
CREATE FUNCTION outbox.enqueue_normal(message jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
        'provider', coalesce(message ->> 'provider', ''));
END $$;

CREATE FUNCTION outbox.enqueue_decode(message jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
        "on_unknown": "string", "priority": "string", "provider": "string"}'));
    RETURN outbox.enqueue_normal(message);
END $$;
-- +goose StatementEnd

-- Addresses. The last bracket and the last @ decide, as in Go.
-- +goose StatementBegin
-- addr of addr or Name <addr>, without the dot that may end a domain; null: has
-- a > without a <.
CREATE FUNCTION outbox.enqueue_bare(address text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT regexp_replace(
        CASE WHEN a.trimmed LIKE '%>' THEN substring(a.trimmed FROM '<([^<]*)>$') ELSE a.trimmed END, '(@[^@]*)\.$', '\1')
    FROM (SELECT outbox.enqueue_trim(address)) AS a (trimmed));
END $$;

CREATE FUNCTION outbox.enqueue_address_error(address text) RETURNS text LANGUAGE plpgsql STABLE AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_check_addresses(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;

-- What to search by: the bare recipients in lower case, each once. A domain that
-- is not ASCII stays as it is; the worker that delivers the email replaces it.
CREATE FUNCTION outbox.enqueue_recipients(m jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN array_agg(r.address ORDER BY r.first) FROM (
        SELECT outbox.enqueue_lower(outbox.enqueue_bare(a.address)), min(a.n)
        FROM jsonb_array_elements_text((m -> 'to') || (m -> 'cc') || (m -> 'bcc')) WITH ORDINALITY AS a (address, n)
        GROUP BY 1) AS r (address, first);
END $$;
-- +goose StatementEnd

-- The rest of the shape, as outbox/validate.go has it.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_check_content(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE
            WHEN m ->> 'subject' = '' THEN outbox.enqueue_error('subject', 'is required')
            WHEN outbox.enqueue_has_control(m ->> 'subject') THEN outbox.enqueue_error('subject', outbox.enqueue_no_control())
            ELSE outbox.enqueue_error_if(outbox.enqueue_bytes(m ->> 'subject') > 2000, 'subject', 'is longer than 2000 bytes')
        END
        || outbox.enqueue_error_if(m ->> 'html' = '' AND m ->> 'text' = '', 'html', 'is required unless text is given');
END $$;

CREATE FUNCTION outbox.enqueue_header_error(name text, value text, again boolean) RETURNS text LANGUAGE plpgsql STABLE AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_check_headers(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT outbox.enqueue_error_if(count(*) > 50, 'headers', 'has more than 50 fields')
        || coalesce(jsonb_agg(jsonb_build_object('field', 'headers.' || outbox.enqueue_quote(h.key), 'message', h.message)
            ORDER BY h.key COLLATE "C") FILTER (WHERE h.message IS NOT NULL), '[]')
    FROM (
        SELECT key, outbox.enqueue_header_error(key, value,
            row_number() OVER (PARTITION BY outbox.enqueue_lower(key) ORDER BY key COLLATE "C") > 1)
        FROM jsonb_each_text(m -> 'headers')) AS h (key, message));
END $$;

CREATE FUNCTION outbox.enqueue_attachment_errors(field text, a jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_check_attachments(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN outbox.enqueue_error_if(jsonb_array_length(m -> 'attachments') > 100, 'attachments', 'has more than 100 files')
        || (SELECT coalesce(jsonb_agg(e.error ORDER BY a.n), '[]')
            FROM jsonb_array_elements(m -> 'attachments') WITH ORDINALITY AS a (value, n),
                jsonb_array_elements(outbox.enqueue_attachment_errors(format('attachments[%s]', a.n - 1), a.value)) AS e (error));
END $$;

CREATE FUNCTION outbox.enqueue_check_labels(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_check_options(m jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN outbox.enqueue_error_if(m ->> 'on_unknown' NOT IN ('', 'retry', 'hold', 'drop'), 'on_unknown', 'must be retry, hold or drop')
        || outbox.enqueue_error_if(m ->> 'priority' NOT IN ('', 'high', 'normal', 'low'), 'priority', 'must be high, normal or low')
        || outbox.enqueue_error_if(outbox.enqueue_has_control(m ->> 'provider') OR outbox.enqueue_bytes(m ->> 'provider') > 256,
            'provider', 'is not a provider''s name')
        || outbox.enqueue_error_if(outbox.enqueue_time(m ->> 'expires_at') <= outbox.enqueue_time(m ->> 'scheduled_at'),
            'expires_at', 'must be after scheduled_at');
END $$;

CREATE FUNCTION outbox.enqueue_check(m jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_check_addresses(m) || outbox.enqueue_check_content(m) || outbox.enqueue_check_headers(m)
        || outbox.enqueue_check_attachments(m) || outbox.enqueue_check_labels(m) || outbox.enqueue_check_options(m)
$$;

-- What depends on the clock. A replay is not held to it: a retry that arrives
-- late is still the same request.
CREATE FUNCTION outbox.enqueue_check_times(scheduled_at timestamptz, expires_at timestamptz, at timestamptz)
RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN outbox.enqueue_error_if(scheduled_at < at, 'scheduled_at', 'is in the past')
        || outbox.enqueue_error_if(scheduled_at > at + interval '2160 hours', 'scheduled_at', 'is more than 90 days ahead')
        || outbox.enqueue_error_if(expires_at <= at, 'expires_at', 'is in the past');
END $$;
-- +goose StatementEnd
