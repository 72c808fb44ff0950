-- The schema that the migrations make, River's tables included, written by
-- go test ./migrations -update and checked by the same test. Not for running.

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


TABLE api_keys
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
    api_keys_org_id_fkey FOREIGN KEY (org_id) REFERENCES outbox.orgs(id) ON DELETE CASCADE
    api_keys_pkey PRIMARY KEY (id)
    api_keys_scopes_check CHECK ((scopes <@ ARRAY['send'::text, 'read'::text, 'admin'::text]))

TABLE attachments
    email_id uuid NOT NULL
    position smallint NOT NULL
    filename text NOT NULL
    content_type text
    content_id text
    content bytea NOT NULL
    attachments_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    attachments_pkey PRIMARY KEY (email_id, "position")

TABLE attempts WITH (fillfactor=80)
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
    CREATE UNIQUE INDEX attempts_one_open ON outbox.attempts USING btree (email_id) WHERE (stage = 'sending'::text)

TABLE email_contents
    email_id uuid NOT NULL
    org_id uuid NOT NULL
    from_address text NOT NULL
    to_addresses jsonb NOT NULL
    cc_addresses jsonb
    bcc_addresses jsonb
    reply_to jsonb
    subject text NOT NULL
    html text
    text text
    headers jsonb
    tags jsonb
    metadata jsonb
    recipients text[] NOT NULL
    email_contents_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    email_contents_pkey PRIMARY KEY (email_id)
    CREATE INDEX email_contents_recipients ON outbox.email_contents USING gin (recipients)
    CREATE INDEX email_contents_tags ON outbox.email_contents USING gin (tags jsonb_path_ops) WHERE (tags IS NOT NULL)

TABLE emails WITH (fillfactor=80)
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
    emails_on_unknown_check CHECK ((on_unknown = ANY (ARRAY['retry'::text, 'hold'::text, 'drop'::text])))
    emails_pkey PRIMARY KEY (id)
    emails_priority_check CHECK (((priority >= 1) AND (priority <= 3)))
    emails_status_check CHECK ((status = ANY (ARRAY['scheduled'::text, 'queued'::text, 'sending'::text, 'unknown'::text, 'sent'::text, 'delivered'::text, 'bounced'::text, 'complained'::text, 'failed'::text, 'canceled'::text, 'expired'::text, 'suppressed'::text])))
    CREATE INDEX emails_open ON outbox.emails USING btree (id) WHERE (ended_at IS NULL)
    CREATE INDEX emails_org_id_id ON outbox.emails USING btree (org_id, id)
    CREATE INDEX emails_org_id_status_id ON outbox.emails USING btree (org_id, status, id)

TABLE events
    id uuid NOT NULL
    email_id uuid NOT NULL
    type text NOT NULL
    provider text
    recipient text
    detail text
    occurred_at timestamp with time zone NOT NULL
    received_at timestamp with time zone NOT NULL DEFAULT now()
    events_email_id_fkey FOREIGN KEY (email_id) REFERENCES outbox.emails(id) ON DELETE CASCADE
    events_pkey PRIMARY KEY (id)
    CREATE INDEX events_email_id ON outbox.events USING btree (email_id, id)

TABLE idempotency_keys
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

TABLE orgs
    id uuid NOT NULL
    name text NOT NULL
    from_domains text[] NOT NULL DEFAULT '{}'::text[]
    require_idempotency_key boolean NOT NULL DEFAULT false
    on_unknown text
    created_at timestamp with time zone NOT NULL DEFAULT now()
    orgs_name_check CHECK (((name <> ''::text) AND (length(name) <= 100)))
    orgs_name_key UNIQUE (name)
    orgs_on_unknown_check CHECK ((on_unknown = ANY (ARRAY['retry'::text, 'hold'::text, 'drop'::text])))
    orgs_pkey PRIMARY KEY (id)
    CREATE UNIQUE INDEX orgs_name_key ON outbox.orgs USING btree (name)

TABLE river_job
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
    CREATE INDEX river_job_args_index ON outbox.river_job USING gin (args)
    CREATE INDEX river_job_kind ON outbox.river_job USING btree (kind)
    CREATE INDEX river_job_metadata_index ON outbox.river_job USING gin (metadata)
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
