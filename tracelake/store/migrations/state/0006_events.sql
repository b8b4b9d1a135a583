-- What happened: updates and invalidations of datasets, stored before they are routed, and batches on their way.

CREATE TYPE event_kind AS ENUM ('cursor', 'partition', 'update');
COMMENT ON TYPE event_kind IS 'Read up to here; this partition is new; something is new.';
CREATE TYPE event_origin AS ENUM ('task', 'sink', 'manual', 'cron', 'webhook');
CREATE TYPE disposition AS ENUM ('Route', 'AuditOnly');
COMMENT ON TYPE disposition IS 'To be routed; kept for the record only, such as news of an old generation.';

CREATE TABLE events (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL,
    origin event_origin NOT NULL DEFAULT 'task',
    kind event_kind NOT NULL,
    disposition disposition NOT NULL DEFAULT 'Route',
    producer_attempt integer,
    producer_run_id uuid NOT NULL,
    producer_task_id uuid REFERENCES tasks (id),
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    scope text NOT NULL,
    cursor_value bigint,
    partition_key text,
    block_range int8range,
    commit_number bigint,
    payload jsonb,
    audit_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    routed_at timestamptz,
    CONSTRAINT events_once UNIQUE (producer_run_id, dataset_uuid, dataset_version, scope),
    CONSTRAINT events_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT events_producer_has_an_attempt CHECK ((producer_task_id IS NULL) = (producer_attempt IS NULL)),
    CONSTRAINT events_of_tasks_name_the_task CHECK (origin NOT IN ('task', 'sink') OR producer_task_id IS NOT NULL),
    CONSTRAINT events_attempt_from_one CHECK (producer_attempt >= 1),
    CONSTRAINT events_scope_says_something CHECK (scope <> ''),
    CONSTRAINT events_cursor_shape CHECK ((kind = 'cursor') = (cursor_value IS NOT NULL)),
    CONSTRAINT events_partition_shape CHECK ((kind = 'partition') = (partition_key IS NOT NULL)),
    CONSTRAINT events_range_is_of_a_partition CHECK (block_range IS NULL OR kind = 'partition'),
    CONSTRAINT events_range_is_finite CHECK (is_block_range(block_range)),
    CONSTRAINT events_key_is_the_range CHECK (partition_key = block_range_key(block_range)),
    CONSTRAINT events_cursor_from_zero CHECK (cursor_value >= 0),
    CONSTRAINT events_audit_says_why CHECK ((disposition = 'AuditOnly') = (audit_reason IS NOT NULL)),
    CONSTRAINT events_audit_only_is_not_routed CHECK (routed_at IS NULL OR disposition = 'Route')
) WITH (
    -- Noting that an event was routed changes no indexed column: with room in the page it is a heap-only update. What is
    -- still to be routed is asked of the outbox, so no index here depends on it.
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000
);
COMMENT ON TABLE events IS 'An update of a dataset, stored once per run, dataset, generation and scope, and then routed.';
COMMENT ON COLUMN events.producer_run_id IS
    'The same for every attempt and restart of the producer: its task id, or a source''s run id, or a trigger''s request id.';
COMMENT ON COLUMN events.scope IS 'What of the dataset is new, in one word: `cursor:12345`, `partition:1000-1999`.';
COMMENT ON COLUMN events.block_range IS 'Half-open; the wire''s start and end are inclusive.';
COMMENT ON COLUMN events.commit_number IS 'The commit that it tells of.';
COMMENT ON COLUMN events.payload IS 'What came with it, such as the body of a webhook.';

CREATE TABLE held_events (
    job_id uuid NOT NULL,
    event_id uuid NOT NULL REFERENCES events (id),
    org_id uuid NOT NULL,
    held_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, event_id),
    CONSTRAINT held_events_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
);
COMMENT ON TABLE held_events IS
    'An event that waits because the job is paused. Event ids rise with time, so the key is also the order of release.';

CREATE TABLE data_invalidations (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    block_range int8range,
    partition_keys text[],
    reason text NOT NULL,
    follows_commit bigint,
    producer_task_id uuid REFERENCES tasks (id),
    producer_attempt integer,
    requested_by uuid,
    disposition disposition NOT NULL DEFAULT 'Route',
    audit_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    routed_at timestamptz,
    CONSTRAINT data_invalidations_id_within_org UNIQUE (org_id, id),
    CONSTRAINT data_invalidations_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT data_invalidations_commit_of_same_dataset
        FOREIGN KEY (dataset_uuid, follows_commit) REFERENCES commits (dataset_uuid, number),
    CONSTRAINT data_invalidations_user_of_same_org FOREIGN KEY (org_id, requested_by) REFERENCES users (org_id, id),
    CONSTRAINT data_invalidations_name_a_range_or_partitions CHECK (num_nonnulls(block_range, partition_keys) = 1),
    CONSTRAINT data_invalidations_range_is_finite CHECK (is_block_range(block_range)),
    CONSTRAINT data_invalidations_partitions_are_named CHECK (
        cardinality(partition_keys) > 0 AND array_position(partition_keys, NULL) IS NULL
    ),
    CONSTRAINT data_invalidations_reason_says_something CHECK (reason <> ''),
    CONSTRAINT data_invalidations_come_from_someone CHECK (num_nonnulls(producer_task_id, requested_by) = 1),
    CONSTRAINT data_invalidations_producer_has_an_attempt CHECK (
        (producer_task_id IS NULL) = (producer_attempt IS NULL)
    ),
    CONSTRAINT data_invalidations_audit_says_why CHECK ((disposition = 'AuditOnly') = (audit_reason IS NOT NULL)),
    CONSTRAINT data_invalidations_audit_only_is_not_routed CHECK (routed_at IS NULL OR disposition = 'Route')
);
COMMENT ON TABLE data_invalidations IS 'A part of a generation that no longer holds, and why; its readers do that part again.';
COMMENT ON COLUMN data_invalidations.id IS
    'Trace makes it from producer, range and reason, so that a call repeated is stored once.';
COMMENT ON COLUMN data_invalidations.follows_commit IS 'The commit that made it untrue.';
CREATE INDEX idx_data_invalidations_dataset ON data_invalidations (dataset_version, created_at);

CREATE TABLE data_invalidation_jobs (
    invalidation_id uuid NOT NULL,
    job_id uuid NOT NULL,
    org_id uuid NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz,
    PRIMARY KEY (invalidation_id, job_id),
    CONSTRAINT data_invalidation_jobs_invalidation_of_same_org
        FOREIGN KEY (org_id, invalidation_id) REFERENCES data_invalidations (org_id, id),
    CONSTRAINT data_invalidation_jobs_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
);
COMMENT ON TABLE data_invalidation_jobs IS
    'One reader''s share of an invalidation: the task that does it again, and when that task''s completion was accepted.';
CREATE INDEX idx_data_invalidation_jobs_open ON data_invalidation_jobs (job_id) WHERE processed_at IS NULL;

CREATE TYPE buffer_publish_status AS ENUM ('Accepted', 'Committed', 'Dead');
COMMENT ON TYPE buffer_publish_status IS 'On its way to the sink; rows in the table; refused by the sink.';

CREATE TABLE buffer_publishes (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks (id),
    attempt integer NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    batch_uri text NOT NULL,
    content_type text NOT NULL DEFAULT 'application/jsonl',
    record_count bigint,
    batch_size_bytes bigint,
    content_hash bytea NOT NULL,
    status buffer_publish_status NOT NULL DEFAULT 'Accepted',
    error_message text,
    created_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    CONSTRAINT buffer_publishes_once UNIQUE (task_id, attempt, dataset_uuid, batch_uri),
    CONSTRAINT buffer_publishes_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT buffer_publishes_attempt_from_one CHECK (attempt >= 1),
    CONSTRAINT buffer_publishes_uri_says_something CHECK (batch_uri <> ''),
    CONSTRAINT buffer_publishes_sizes_are_not_negative CHECK (record_count >= 0 AND batch_size_bytes >= 0),
    CONSTRAINT buffer_publishes_hash_is_sha256 CHECK (octet_length(content_hash) = 32),
    CONSTRAINT buffer_publishes_settled_says_when CHECK ((status = 'Accepted') = (settled_at IS NULL)),
    CONSTRAINT buffer_publishes_death_says_why CHECK ((status = 'Dead') = (error_message IS NOT NULL))
);
COMMENT ON TABLE buffer_publishes IS 'A pointer to a batch of rows, accepted from a task and bound for the sink.';
COMMENT ON COLUMN buffer_publishes.content_hash IS
    'SHA-256 of the request''s other fields: the same key with another hash is a conflict.';
CREATE INDEX idx_buffer_publishes_open ON buffer_publishes (id) WHERE status = 'Accepted';
CREATE INDEX idx_buffer_publishes_dead ON buffer_publishes (org_id, id) WHERE status = 'Dead';
