-- +goose Up

-- What an email is found by: a hash of its org, the kind of term and the value.
-- Equality of uuids is all that a search needs, so that row-level security does
-- not keep it from its index, and the hash alone binds a term to an org. There
-- is no foreign key, which would cost each insert a look; whoever deletes an
-- email or its content calls forget_terms.
CREATE TABLE outbox.email_terms (
    email_id uuid NOT NULL,
    term     uuid NOT NULL,
    PRIMARY KEY (email_id, term)
);
CREATE INDEX email_terms_term ON outbox.email_terms (term, email_id);

-- +goose StatementBegin
-- The same as searchTerm in outbox/terms.go.
CREATE FUNCTION outbox.enqueue_term(org uuid, kind text, value text) RETURNS uuid LANGUAGE sql STABLE AS $$
    SELECT encode(substring(sha256(convert_to(E'outbox term 1\n' || kind || E'\n', 'UTF8') || uuid_send(org)
        || convert_to(value, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid
$$;

-- A tag is found by its name and by name:value.
CREATE FUNCTION outbox.enqueue_terms(org uuid, recipients text[], tags jsonb) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
    SELECT outbox.enqueue_term(org, 'to', r.address) FROM unnest(recipients) AS r (address)
    UNION
    SELECT outbox.enqueue_term(org, 'tag', v.value)
    FROM jsonb_array_elements(tags) AS t (tag),
        LATERAL (VALUES (t.tag ->> 'name'), ((t.tag ->> 'name') || ':' || (t.tag ->> 'value'))) AS v (value)
$$;

CREATE OR REPLACE FUNCTION outbox.enqueue_store_content(email uuid, org uuid, m jsonb, files bytea[]) RETURNS void LANGUAGE plpgsql AS $$
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
END $$;

-- Removes what emails are found by; for whoever deletes them or their contents,
-- in the same transaction.
CREATE FUNCTION outbox.forget_terms(emails uuid[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM outbox.email_terms t WHERE t.email_id = ANY (emails)
$$;

REVOKE ALL ON FUNCTION outbox.enqueue_term, outbox.enqueue_terms, outbox.forget_terms FROM PUBLIC;
-- +goose StatementEnd

INSERT INTO outbox.email_terms (email_id, term)
SELECT c.email_id, t.term
FROM outbox.email_contents c, LATERAL outbox.enqueue_terms(c.org_id, c.recipients, c.tags) AS t (term);

DROP INDEX outbox.email_contents_recipients;
DROP INDEX outbox.email_contents_tags;
COMMENT ON COLUMN outbox.email_contents.recipients IS 'bare addresses of To, Cc and Bcc in lower case, to compare with suppressions';

-- The wall between orgs, behind the conditions that every query has. It is down
-- where the setting outbox.org is not set or empty: for workers, operators and
-- applications. The API sets it to a value that no org has, and to the org for
-- each transaction of a request; then only the org's rows exist. It guards
-- against a forgotten condition, not against somebody who can run SQL. FORCE
-- makes it hold for the tables' owner too; nothing holds for a superuser.
--
-- A CASE counts as even for the planner, which plans by and large as it would
-- without the wall. Subqueries for the setting would be read once per statement
-- and not once per row, but to set them up costs a statement about a single row
-- more than all else that the wall does. A scalar subquery is never turned into a
-- hash of all emails, as an EXISTS may be.

-- +goose StatementBegin
DO $$
DECLARE
    wall record;
    ours constant text := $part$::text = current_setting('outbox.org', true)$part$;
    of_email constant text := '(SELECT true FROM outbox.emails e WHERE e.id = email_id)';
BEGIN
    FOR wall IN SELECT * FROM (VALUES
        ('orgs', 'id' || ours), ('api_keys', 'org_id' || ours), ('emails', 'org_id' || ours),
        ('email_contents', 'org_id' || ours), ('idempotency_keys', 'org_id' || ours),
        ('suppressions', 'org_id' || ours), ('webhooks', 'org_id' || ours), ('webhook_messages', 'org_id' || ours),
        ('email_terms', of_email), ('attachments', of_email), ('attempts', of_email), ('events', of_email),
        -- These are no org's, and hold what none may see.
        ('stray_events', 'false'), ('unsubscribe_secrets', 'false')) AS w (name, condition)
    LOOP
        EXECUTE format('ALTER TABLE outbox.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', wall.name);
        EXECUTE format($policy$CREATE POLICY wall ON outbox.%I USING (
            CASE WHEN coalesce(current_setting('outbox.org', true), '') = '' THEN true ELSE %s END)$policy$,
            wall.name, wall.condition);
    END LOOP;
END $$;
-- +goose StatementEnd
