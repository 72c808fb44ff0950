-- +goose Up

-- The SQL door: outbox.enqueue_email, at the end of this file, submits an email in
-- the caller's transaction. Keys, fingerprints and rows are those of package
-- outbox, so that a submission replays whichever way it came; tests compare
-- them. Its parts are nobody else's to call.

-- The canonical form of a request, version 1; see outbox/fingerprint.go.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_field(name text, value bytea) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT convert_to(format('%s:%s:', name, length(value)), 'UTF8') || value || '\x0a'::bytea
$$;

CREATE FUNCTION outbox.enqueue_text_field(name text, value text) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_field(name, convert_to(value, 'UTF8'))
$$;

CREATE FUNCTION outbox.enqueue_optional_field(name text, value text) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN value <> '' THEN outbox.enqueue_text_field(name, value) ELSE '' END
$$;

CREATE FUNCTION outbox.enqueue_list_field(name text, list jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field(name, v.value), '' ORDER BY v.n), '')
    FROM jsonb_array_elements_text(list) WITH ORDINALITY AS v (value, n));
END $$;

-- Go sorts by bytes, and so does the collation C of UTF-8.
CREATE FUNCTION outbox.enqueue_dict_field(name text, dict jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field(name, v.key) || outbox.enqueue_text_field('value', v.value), ''
        ORDER BY v.key COLLATE "C"), '')
    FROM jsonb_each_text(dict) AS v);
END $$;

CREATE FUNCTION outbox.enqueue_tags_field(tags jsonb) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field('tag', t.tag ->> 'name')
        || outbox.enqueue_text_field('value', t.tag ->> 'value'), '' ORDER BY t.n), '')
    FROM jsonb_array_elements(tags) WITH ORDINALITY AS t (tag, n));
END $$;

CREATE FUNCTION outbox.enqueue_attachments_field(attachments jsonb, files bytea[]) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(string_agg(outbox.enqueue_text_field('attachment', a.value ->> 'filename')
        || outbox.enqueue_optional_field('content_type', a.value ->> 'content_type')
        || outbox.enqueue_optional_field('content_id', a.value ->> 'content_id')
        || outbox.enqueue_field('content', f.content), '' ORDER BY a.n), '')
    FROM jsonb_array_elements(attachments) WITH ORDINALITY AS a (value, n)
        JOIN unnest(files) WITH ORDINALITY AS f (content, n) USING (n));
END $$;

-- Microseconds since 1970.
CREATE FUNCTION outbox.enqueue_instant_field(name text, instant timestamptz) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN outbox.enqueue_optional_field(name, (extract(epoch FROM instant) * 1000000)::bigint::text);
END $$;

CREATE FUNCTION outbox.enqueue_fingerprint(org uuid, m jsonb, files bytea[]) RETURNS bytea LANGUAGE plpgsql STABLE AS $$
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
        || outbox.enqueue_optional_field('provider', m ->> 'provider'));
END $$;
-- +goose StatementEnd

-- Who may submit what.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_find_org(org uuid) RETURNS outbox.orgs LANGUAGE plpgsql STABLE AS $$
DECLARE
    known outbox.orgs;
BEGIN
    SELECT * INTO known FROM outbox.orgs AS o WHERE o.id = org;
    IF known.id IS NULL THEN
        PERFORM outbox.enqueue_refuse('OB404', 'not_found', format('There is no org %s.', coalesce(org::text, 'null')),
            'outboxctl org create makes one; outbox.orgs lists those that there are.',
            outbox.enqueue_error('org', 'does not exist'));
    END IF;
    RETURN known;
END $$;

CREATE FUNCTION outbox.enqueue_check_key(required boolean, key text, ttl interval) RETURNS void LANGUAGE plpgsql STABLE AS $$
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
END $$;

-- The domain is read as it stands, without IDNA: From domains are ASCII. An
-- address that cannot be read at all is reported with all that is wrong.
CREATE FUNCTION outbox.enqueue_check_from(allowed text[], address text) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    domain constant text := outbox.enqueue_lower(substring(outbox.enqueue_bare(left(address, 999)) FROM '@([^@]*)$'));
BEGIN
    IF allowed <> '{}' AND outbox.enqueue_address_error(address) IS NULL AND domain <> ALL (allowed) THEN
        PERFORM outbox.enqueue_refuse('OB403', 'invalid_from_address',
            format('This org may not send from %s. Allowed: %s.', domain, array_to_string(allowed, ', ')),
            'Write an international domain in its ASCII form, xn--...');
    END IF;
END $$;
-- +goose StatementEnd

-- Idempotency: the claim of sqlInsertKeys, and then, as a statement of its own,
-- the look of sqlFindKeys (outbox/enqueue.go).
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_claim(claim outbox.idempotency_keys) RETURNS boolean LANGUAGE plpgsql AS $$
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
END $$;

CREATE FUNCTION outbox.enqueue_refuse_concurrent() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue_refuse('OB409', 'concurrent_idempotent_requests',
        'A submission with this idempotency key is in progress.', 'Run the transaction again, with the same key.');
END $$;

-- Only who set a lock time-out pays for the subtransaction that it takes to give
-- the time-out its name.
CREATE FUNCTION outbox.enqueue_claim_in_time(claim outbox.idempotency_keys) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('lock_timeout') = '0' THEN
        RETURN outbox.enqueue_claim(claim);
    END IF;
    BEGIN
        RETURN outbox.enqueue_claim(claim);
    EXCEPTION WHEN lock_not_available THEN
        PERFORM outbox.enqueue_refuse_concurrent();
    END;
END $$;

-- The answer to a submission whose key is taken, or that comes too late to be
-- the first.
CREATE FUNCTION outbox.enqueue_replay(claim outbox.idempotency_keys, late jsonb) RETURNS uuid LANGUAGE plpgsql AS $$
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
END $$;
-- +goose StatementEnd

-- Storing.
-- +goose StatementBegin
-- A UUIDv7 as Go makes them: milliseconds, then the rest of the time in 12 bits,
-- then 62 random bits.
CREATE FUNCTION outbox.enqueue_new_id(at timestamptz) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT encode(substring(int8send(t.micros / 1000) FROM 3)
        || int2send((28672 + t.micros % 1000 * 4096 / 1000)::smallint)
        || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM at) * 1000000)::bigint) AS t (micros));
END $$;

CREATE FUNCTION outbox.enqueue_rank(priority text) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT (CASE priority WHEN 'high' THEN 1 WHEN 'low' THEN 3 ELSE 2 END)::smallint
$$;

CREATE FUNCTION outbox.enqueue_store_content(email uuid, org uuid, m jsonb, files bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.email_contents (
        email_id, org_id, from_address, to_addresses, cc_addresses, bcc_addresses, reply_to,
        subject, html, text, headers, tags, metadata, recipients)
    VALUES (
        email, org, m ->> 'from', m -> 'to', nullif(m -> 'cc', '[]'), nullif(m -> 'bcc', '[]'), nullif(m -> 'reply_to', '[]'),
        m ->> 'subject', nullif(m ->> 'html', ''), nullif(m ->> 'text', ''), nullif(m -> 'headers', '{}'),
        nullif(m -> 'tags', '[]'), nullif(m -> 'metadata', '{}'), outbox.enqueue_recipients(m));
    INSERT INTO outbox.attachments (email_id, position, filename, content_type, content_id, content)
    SELECT email, n - 1, a.value ->> 'filename', nullif(a.value ->> 'content_type', ''), nullif(a.value ->> 'content_id', ''), f.content
    FROM jsonb_array_elements(m -> 'attachments') WITH ORDINALITY AS a (value, n)
        JOIN unnest(files) WITH ORDINALITY AS f (content, n) USING (n);
END $$;

-- River's job, and the notification that its client would send: a worker looks
-- as soon as the transaction commits, not at its next poll.
CREATE FUNCTION outbox.enqueue_store_job(email uuid, rank smallint, scheduled_at timestamptz, at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.river_job (args, created_at, kind, max_attempts, priority, queue, scheduled_at, state)
    VALUES (jsonb_build_object('email_id', email), at, 'deliver_email', 10000, rank, 'emails', coalesce(scheduled_at, at),
        CASE WHEN scheduled_at IS NULL THEN 'available' ELSE 'scheduled' END::outbox.river_job_state);
    IF scheduled_at IS NULL THEN
        PERFORM pg_notify('outbox.river_insert', '{"queue": "emails"}');
    END IF;
END $$;

CREATE FUNCTION outbox.enqueue_store(email outbox.emails, m jsonb, files bytea[], at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.emails (id, org_id, status, priority, on_unknown, provider, created_at, scheduled_at, expires_at)
    VALUES (email.id, email.org_id, email.status, email.priority, email.on_unknown, email.provider,
        email.created_at, email.scheduled_at, email.expires_at);
    PERFORM outbox.enqueue_store_content(email.id, email.org_id, m, files);
    PERFORM outbox.enqueue_store_job(email.id, email.priority, email.scheduled_at, at);
END $$;
-- +goose StatementEnd

-- It runs with the rights of its owner, so a role needs no more than EXECUTE on
-- it and USAGE on the schema. For that reason nothing that the caller could have
-- set decides what its names, literals and times mean.
-- +goose StatementBegin
CREATE FUNCTION outbox.enqueue_email(
    org uuid, message jsonb, idempotency_key text DEFAULT NULL, idempotency_ttl interval DEFAULT interval '7 days')
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET standard_conforming_strings = on
AS $$
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
END $$;

DO $$
DECLARE
    part regprocedure;
BEGIN
    FOR part IN SELECT oid FROM pg_catalog.pg_proc
        WHERE pronamespace = 'outbox'::regnamespace AND proname LIKE 'enqueue\_%' LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', part);
    END LOOP;
END $$;
-- +goose StatementEnd

COMMENT ON FUNCTION outbox.enqueue_email IS
    'submits an email, the body of POST /emails, in the caller''s transaction and returns its id';
