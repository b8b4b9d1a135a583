-- What jobs produce: datasets, their generations, and the edges by which an update finds its readers.

CREATE TYPE dataset_visibility AS ENUM ('internal', 'org', 'roles');
COMMENT ON TYPE dataset_visibility IS 'No user; every reader of the organisation; only who has one of read_roles.';

CREATE TABLE datasets (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    -- Every job output has a row here, but only `publish:` gives a name that users know. An unpublished output has none
    -- (any number of NULLs satisfy UNIQUE), rather than a made-up one that a user's name could collide with.
    name text,
    visibility dataset_visibility NOT NULL DEFAULT 'internal',
    producer_dag_name text NOT NULL,
    producer_job_name text NOT NULL,
    producer_output_index integer NOT NULL,
    storage jsonb NOT NULL DEFAULT '{}',
    read_roles text[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT datasets_name_once UNIQUE (org_id, name),
    CONSTRAINT datasets_one_producer UNIQUE (org_id, producer_dag_name, producer_job_name, producer_output_index),
    CONSTRAINT datasets_id_within_org UNIQUE (org_id, id),
    CONSTRAINT datasets_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT datasets_published_has_a_name CHECK ((visibility = 'internal') = (name IS NULL)),
    CONSTRAINT datasets_roles_when_by_role CHECK ((visibility = 'roles') = (read_roles <> '{}')),
    CONSTRAINT datasets_producer_is_named CHECK (
        producer_dag_name ~ '^[a-z][a-z0-9_]{0,127}$' AND producer_job_name ~ '^[a-z][a-z0-9_]{0,127}$'
    ),
    CONSTRAINT datasets_output_index_from_zero CHECK (producer_output_index >= 0),
    CONSTRAINT datasets_storage_is_object CHECK (jsonb_typeof(storage) = 'object')
);
COMMENT ON TABLE datasets IS 'A job''s output, published or not; the same row on every deploy.';
COMMENT ON COLUMN datasets.id IS 'The dataset_uuid; Trace makes it from organisation, DAG, job and output index.';
COMMENT ON COLUMN datasets.name IS 'The published name, unique in the organisation; NULL while unpublished.';
COMMENT ON COLUMN datasets.storage IS 'The kind of backend and its options; where a generation lies is in dataset_versions.';

CREATE TABLE dataset_versions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    generation uuid,
    storage_location text NOT NULL,
    storage_glob text,
    config_hash text NOT NULL,
    schema_hash text,
    block_range int8range,
    range_start bigint GENERATED ALWAYS AS (lower(block_range)) STORED,
    range_end bigint GENERATED ALWAYS AS (upper(block_range) - 1) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- NULLS NOT DISTINCT: two generations (no range) of one config are the same generation.
    CONSTRAINT dataset_versions_content_once UNIQUE NULLS NOT DISTINCT (dataset_uuid, config_hash, range_start, range_end),
    CONSTRAINT dataset_versions_id_within_dataset UNIQUE (org_id, dataset_uuid, id),
    CONSTRAINT dataset_versions_dataset_of_same_org
        FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id),
    CONSTRAINT dataset_versions_generation_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, generation) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT dataset_versions_range_names_its_generation CHECK ((block_range IS NULL) = (generation IS NULL)),
    CONSTRAINT dataset_versions_not_its_own_generation CHECK (generation <> id),
    CONSTRAINT dataset_versions_range_is_finite CHECK (is_block_range(block_range)),
    CONSTRAINT dataset_versions_location_says_something CHECK (storage_location <> ''),
    -- `foo` would also match `foobar`.
    CONSTRAINT dataset_versions_prefix_ends_in_slash CHECK (
        storage_location NOT LIKE 's3://%' OR storage_location LIKE '%/'
    ),
    CONSTRAINT dataset_versions_glob_stays_in_prefix CHECK (storage_glob ~ '^[A-Za-z0-9_.*-]+$'),
    CONSTRAINT dataset_versions_hash_says_something CHECK (config_hash <> '' AND schema_hash <> '')
);
COMMENT ON TABLE dataset_versions IS
    'A generation of a dataset (no range), or a published range of one; built beside its forerunners, never over them.';
COMMENT ON COLUMN dataset_versions.id IS 'The dataset_version.';
COMMENT ON COLUMN dataset_versions.generation IS 'Of a published range: the generation that it is part of.';
COMMENT ON COLUMN dataset_versions.storage_location IS 'S3: a prefix that ends in `/`; Postgres: the table or view.';
COMMENT ON COLUMN dataset_versions.storage_glob IS 'S3: which objects below the prefix.';
COMMENT ON COLUMN dataset_versions.config_hash IS 'Of the producer''s config and those of everything upstream of it.';
COMMENT ON COLUMN dataset_versions.block_range IS 'Half-open; what writers set.';
COMMENT ON COLUMN dataset_versions.range_start IS 'First block, as the wire says it.';
COMMENT ON COLUMN dataset_versions.range_end IS 'Last block, inclusive, as the wire says it.';

CREATE TABLE dag_version_datasets (
    org_id uuid NOT NULL,
    dag_version_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    PRIMARY KEY (dag_version_id, dataset_uuid),
    CONSTRAINT dag_version_datasets_dag_of_same_org
        FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id),
    CONSTRAINT dag_version_datasets_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id)
);
COMMENT ON TABLE dag_version_datasets IS 'Which generation of each dataset a DAG version serves: its set of pointers.';

CREATE TABLE job_inputs (
    job_id uuid NOT NULL,
    position integer NOT NULL,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    where_tree jsonb,
    live boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, position),
    CONSTRAINT job_inputs_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT job_inputs_dataset_of_same_org FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id),
    CONSTRAINT job_inputs_position_from_zero CHECK (position >= 0),
    CONSTRAINT job_inputs_where_is_a_tree CHECK (jsonb_typeof(where_tree) = 'object')
);
COMMENT ON TABLE job_inputs IS 'An edge of a DAG: this job reads that dataset. Routing is one join over the live ones.';
COMMENT ON COLUMN job_inputs.where_tree IS 'The parsed, allow-listed filter; narrows what the job reads, never stops an event.';
COMMENT ON COLUMN job_inputs.live IS
    'True while the job''s DAG version takes events; follows dag_current_versions by trigger. Without it, routing would '
    'read the edges of every version ever deployed.';
CREATE INDEX idx_job_inputs_live ON job_inputs (dataset_uuid) INCLUDE (job_id) WHERE live;

CREATE FUNCTION follow_current_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE job_inputs SET live = false
        WHERE live AND job_id IN (SELECT id FROM jobs WHERE dag_version_id = OLD.dag_version_id);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        UPDATE job_inputs SET live = true
        WHERE NOT live AND job_id IN (SELECT id FROM jobs WHERE dag_version_id = NEW.dag_version_id);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION follow_current_version IS 'Keeps job_inputs.live true for the jobs of active DAG versions.';
CREATE TRIGGER dag_current_versions_set_live AFTER INSERT OR UPDATE OR DELETE ON dag_current_versions
    FOR EACH ROW EXECUTE FUNCTION follow_current_version();

CREATE TABLE column_lineage (
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    output_dataset_uuid uuid NOT NULL,
    output_column text NOT NULL,
    input_dataset_uuid uuid NOT NULL,
    input_column text NOT NULL,
    -- The job is part of the key because lineage is kept per deploy, and a job row belongs to one DAG version.
    PRIMARY KEY (job_id, output_dataset_uuid, output_column, input_dataset_uuid, input_column),
    CONSTRAINT column_lineage_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT column_lineage_output_of_same_org
        FOREIGN KEY (org_id, output_dataset_uuid) REFERENCES datasets (org_id, id),
    CONSTRAINT column_lineage_input_of_same_org
        FOREIGN KEY (org_id, input_dataset_uuid) REFERENCES datasets (org_id, id)
);
COMMENT ON TABLE column_lineage IS 'Which input column an output column is made from, as derived at deploy.';
CREATE INDEX idx_column_lineage_output ON column_lineage (output_dataset_uuid, output_column);
CREATE INDEX idx_column_lineage_input ON column_lineage (input_dataset_uuid, input_column);
