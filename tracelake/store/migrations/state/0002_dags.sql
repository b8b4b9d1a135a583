-- What is deployed: versions of DAGs, their jobs, and the code bundles that jobs may run.

-- Half-open, with both ends, from block 0 on: what every stored range of blocks must be. Edges (wire, file names, CLI)
-- are inclusive; the conversion is done once, in the domain.
CREATE FUNCTION is_block_range(span int8range) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN NOT isempty(span) AND NOT lower_inf(span) AND NOT upper_inf(span) AND lower(span) >= 0;
COMMENT ON FUNCTION is_block_range IS 'A range of blocks: half-open, not empty, with both ends, from 0 on.';

-- The inclusive `{start}-{end}` by which the outside names a range.
CREATE FUNCTION block_range_key(span int8range) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN lower(span)::text || '-' || (upper(span) - 1)::text;
COMMENT ON FUNCTION block_range_key IS 'The partition key of a range of blocks: `{start}-{end}`, both inclusive.';

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0]
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME, SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;
COMMENT ON FUNCTION refuse_change IS
    'Refuses the change that its trigger stands for, as a CHECK would: the trigger''s name is the constraint reported.';

CREATE TYPE udf_bundle_kind AS ENUM ('python', 'node', 'bootstrap');
CREATE TYPE udf_bundle_status AS ENUM ('Pending', 'Ready', 'Refused');
COMMENT ON TYPE udf_bundle_status IS 'Announced; checked and usable; found wanting.';

CREATE TABLE udf_bundles (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    name text NOT NULL,
    kind udf_bundle_kind NOT NULL,
    sha256 text NOT NULL,
    size_bytes bigint NOT NULL,
    location text NOT NULL,
    status udf_bundle_status NOT NULL DEFAULT 'Pending',
    error_message text,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    finalized_at timestamptz,
    CONSTRAINT udf_bundles_content_once UNIQUE (org_id, sha256),
    CONSTRAINT udf_bundles_id_within_org UNIQUE (org_id, id),
    CONSTRAINT udf_bundles_author_of_same_org FOREIGN KEY (org_id, created_by) REFERENCES users (org_id, id),
    CONSTRAINT udf_bundles_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT udf_bundles_hash_is_sha256 CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT udf_bundles_size_is_positive CHECK (size_bytes > 0),
    CONSTRAINT udf_bundles_finalized_when_checked CHECK ((status = 'Pending') = (finalized_at IS NULL)),
    CONSTRAINT udf_bundles_refusal_says_why CHECK ((status = 'Refused') = (error_message IS NOT NULL))
);
COMMENT ON TABLE udf_bundles IS 'A zip of user code, named by what it contains.';
COMMENT ON COLUMN udf_bundles.location IS 'The object that holds the zip.';

CREATE TABLE dag_versions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    dag_name text NOT NULL,
    yaml_hash text NOT NULL,
    yaml text NOT NULL,
    deployed_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT dag_versions_content_once UNIQUE (org_id, dag_name, yaml_hash),
    CONSTRAINT dag_versions_id_within_org UNIQUE (org_id, id),
    CONSTRAINT dag_versions_id_within_dag UNIQUE (org_id, dag_name, id),
    CONSTRAINT dag_versions_author_of_same_org FOREIGN KEY (org_id, deployed_by) REFERENCES users (org_id, id),
    CONSTRAINT dag_versions_dag_name_is_snake CHECK (dag_name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT dag_versions_hash_says_something CHECK (yaml_hash <> '')
);
COMMENT ON TABLE dag_versions IS 'One deployed definition of a DAG; written once and never changed.';
COMMENT ON COLUMN dag_versions.yaml_hash IS 'Of the canonical form: the same meaning deployed again is the same version.';
COMMENT ON COLUMN dag_versions.yaml IS 'The text as it was deployed, for people.';
CREATE TRIGGER dag_versions_never_change BEFORE UPDATE ON dag_versions
    FOR EACH ROW WHEN (NEW IS DISTINCT FROM OLD) EXECUTE FUNCTION refuse_change('a deployed DAG version never changes');

CREATE TABLE dag_current_versions (
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    dag_version_id uuid NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name),
    CONSTRAINT dag_current_versions_version_of_same_dag
        FOREIGN KEY (org_id, dag_name, dag_version_id) REFERENCES dag_versions (org_id, dag_name, id)
);
COMMENT ON TABLE dag_current_versions IS
    'Which version of a DAG serves reads and gets tasks; a DAG without a row here is deployed but not active.';

CREATE TYPE job_activation AS ENUM ('source', 'reactive');
CREATE TYPE execution_strategy AS ENUM ('PerUpdate', 'PerPartition');
CREATE TYPE update_strategy AS ENUM ('append', 'replace');
CREATE TYPE work_priority AS ENUM ('normal', 'bulk');
COMMENT ON TYPE work_priority IS 'bulk (bootstrap, catch-up) gives way to normal under pressure.';

CREATE TABLE jobs (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL,
    name text NOT NULL,
    dag_name text NOT NULL,
    dag_version_id uuid NOT NULL,
    activation job_activation NOT NULL,
    runtime text NOT NULL,
    operator text NOT NULL,
    source jsonb,
    bootstrap jsonb,
    execution_strategy execution_strategy,
    idle_timeout text,
    config jsonb NOT NULL DEFAULT '{}',
    config_hash text NOT NULL,
    input_datasets uuid[] NOT NULL DEFAULT '{}',
    output_datasets uuid[] NOT NULL DEFAULT '{}',
    update_strategy update_strategy NOT NULL,
    unique_key text[],
    udf_bundle_id uuid,
    secrets text[] NOT NULL DEFAULT '{}',
    priority work_priority NOT NULL DEFAULT 'normal',
    scaling jsonb,
    max_concurrency integer GENERATED ALWAYS AS ((scaling ->> 'max_concurrency')::integer) STORED,
    max_queue_depth integer,
    max_queue_age interval,
    timeout_seconds integer,
    heartbeat_interval_seconds integer NOT NULL DEFAULT 30,
    heartbeat_timeout_seconds integer NOT NULL DEFAULT 120,
    max_attempts integer NOT NULL DEFAULT 3,
    retry_backoff_seconds integer NOT NULL DEFAULT 30,
    retry_backoff_max_seconds integer NOT NULL DEFAULT 600,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT jobs_name_once UNIQUE (dag_version_id, name),
    CONSTRAINT jobs_id_within_org UNIQUE (org_id, id),
    CONSTRAINT jobs_version_of_same_dag
        FOREIGN KEY (org_id, dag_name, dag_version_id) REFERENCES dag_versions (org_id, dag_name, id),
    CONSTRAINT jobs_bundle_of_same_org FOREIGN KEY (org_id, udf_bundle_id) REFERENCES udf_bundles (org_id, id),
    CONSTRAINT jobs_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT jobs_runtime_is_snake CHECK (runtime ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT jobs_operator_is_snake CHECK (operator ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT jobs_config_is_object CHECK (jsonb_typeof(config) = 'object'),
    CONSTRAINT jobs_config_hash_says_something CHECK (config_hash <> ''),
    CONSTRAINT jobs_source_has_a_kind CHECK (
        source IS NULL OR coalesce(source ->> 'kind' IN ('always_on', 'cron', 'webhook', 'manual'), false)
    ),
    CONSTRAINT jobs_source_shape CHECK (
        activation <> 'source'
        OR (source IS NOT NULL AND execution_strategy IS NULL AND idle_timeout IS NULL AND input_datasets = '{}')
    ),
    CONSTRAINT jobs_reactive_shape CHECK (
        activation <> 'reactive'
        OR (source IS NULL AND bootstrap IS NULL AND execution_strategy IS NOT NULL AND input_datasets <> '{}')
    ),
    CONSTRAINT jobs_bootstrap_is_object CHECK (jsonb_typeof(bootstrap) = 'object'),
    CONSTRAINT jobs_idle_timeout_is_a_duration CHECK (idle_timeout ~ '^(never|[0-9]+(ms|s|m|h|d)?)$'),
    CONSTRAINT jobs_append_has_unique_key CHECK (
        update_strategy <> 'append' OR (unique_key IS NOT NULL AND cardinality(unique_key) > 0)
    ),
    CONSTRAINT jobs_unique_key_names_columns CHECK (
        unique_key IS NULL OR (cardinality(unique_key) > 0 AND array_position(unique_key, NULL) IS NULL)
    ),
    CONSTRAINT jobs_untrusted_code_gets_no_secrets CHECK (udf_bundle_id IS NULL OR secrets = '{}'),
    CONSTRAINT jobs_scaling_is_object CHECK (jsonb_typeof(scaling) = 'object'),
    CONSTRAINT jobs_max_concurrency_is_positive CHECK (max_concurrency >= 1),
    CONSTRAINT jobs_max_queue_depth_is_positive CHECK (max_queue_depth >= 1),
    CONSTRAINT jobs_max_queue_age_is_positive CHECK (max_queue_age > interval '0'),
    CONSTRAINT jobs_timeout_is_positive CHECK (timeout_seconds >= 1),
    CONSTRAINT jobs_heartbeat_fits_its_timeout CHECK (
        heartbeat_interval_seconds >= 1 AND heartbeat_interval_seconds < heartbeat_timeout_seconds
    ),
    CONSTRAINT jobs_max_attempts_is_positive CHECK (max_attempts >= 1),
    CONSTRAINT jobs_backoff_rises CHECK (
        retry_backoff_seconds >= 0 AND retry_backoff_seconds <= retry_backoff_max_seconds
    )
);
COMMENT ON TABLE jobs IS 'A job of one DAG version: what runs, on what, and within which limits.';
COMMENT ON COLUMN jobs.runtime IS
    'How the Dispatcher runs it; the settings map runtimes to queues and invokers, so this is no closed list.';
COMMENT ON COLUMN jobs.source IS 'Sources only: what starts it, such as {"kind": "cron", "schedule": "0 0 * * *"}.';
COMMENT ON COLUMN jobs.bootstrap IS 'Sources only: done once per version, such as {"reset_outputs": true}.';
COMMENT ON COLUMN jobs.execution_strategy IS 'Reactive jobs only: one task per update or one per partition.';
COMMENT ON COLUMN jobs.idle_timeout IS 'Reactive jobs only: never, 0, or a number with ms, s, m, h or d.';
COMMENT ON COLUMN jobs.config_hash IS 'Covers whatever changes the bytes produced: operator, runtime, config, bundle, inputs.';
COMMENT ON COLUMN jobs.input_datasets IS 'Dataset uuids in input order, for the payload; routing reads job_inputs.';
COMMENT ON COLUMN jobs.output_datasets IS 'Dataset uuids by output index.';
COMMENT ON COLUMN jobs.secrets IS 'Names of secrets that the operator gets; never their values.';
COMMENT ON COLUMN jobs.max_concurrency IS 'Read out of scaling, so that the hot path need not; NULL: no cap.';
COMMENT ON COLUMN jobs.max_queue_depth IS 'Queued tasks at which its producers are paused; NULL: never.';
COMMENT ON COLUMN jobs.max_queue_age IS 'Age of the oldest queued task at which its producers are paused; NULL: never.';
COMMENT ON COLUMN jobs.timeout_seconds IS 'Ends an attempt even if it heartbeats; NULL: never (sources).';
COMMENT ON COLUMN jobs.heartbeat_timeout_seconds IS 'The length of a lease: what a heartbeat extends it by.';
