-- What counts: commits, which commit each partition is at, and how far each reader has come.

-- Postgres' own GiST classes know ranges, not uuid or text (that would be btree_gist, which is not everywhere). A range
-- from a value to itself overlaps another exactly when the values are equal.
CREATE TYPE uuid_span AS RANGE (subtype = uuid);
CREATE TYPE text_span AS RANGE (subtype = text, collation = "C");
COMMENT ON TYPE uuid_span IS 'Lets an EXCLUDE constraint compare a uuid for equality without an extension.';
COMMENT ON TYPE text_span IS 'Lets an EXCLUDE constraint compare a text for equality without an extension.';

CREATE TABLE dataset_heads (
    dataset_uuid uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    last_commit bigint NOT NULL,
    CONSTRAINT dataset_heads_dataset_of_same_org FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id),
    CONSTRAINT dataset_heads_count_from_one CHECK (last_commit >= 1)
) WITH (fillfactor = 20);
COMMENT ON TABLE dataset_heads IS
    'The number of a dataset''s last commit. Its row lock puts commits in order, so that none appears below one already read.';
CREATE TRIGGER dataset_heads_only_rise BEFORE UPDATE ON dataset_heads
    FOR EACH ROW WHEN (NEW.last_commit < OLD.last_commit)
    EXECUTE FUNCTION refuse_change('the number of a dataset''s commits never falls');

CREATE TABLE commits (
    dataset_uuid uuid NOT NULL,
    number bigint NOT NULL,
    org_id uuid NOT NULL,
    dataset_version uuid NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks (id),
    attempt integer NOT NULL,
    scope text NOT NULL DEFAULT '',
    row_count bigint,
    bytes bigint,
    schema_hash text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_uuid, number),
    CONSTRAINT commits_effect_once UNIQUE (task_id, dataset_uuid, scope),
    CONSTRAINT commits_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT commits_count_from_one CHECK (number >= 1),
    CONSTRAINT commits_attempt_from_one CHECK (attempt >= 1),
    CONSTRAINT commits_sizes_are_not_negative CHECK (row_count >= 0 AND bytes >= 0)
);
COMMENT ON TABLE commits IS 'One accepted effect of one task on one dataset; its number rises per dataset.';
COMMENT ON COLUMN commits.number IS 'Taken from dataset_heads in the same transaction.';
COMMENT ON COLUMN commits.scope IS
    'Empty for a completion, so that a task commits once; a source that commits as it goes names each step.';
CREATE TRIGGER commits_never_change BEFORE UPDATE ON commits
    FOR EACH ROW WHEN (NEW IS DISTINCT FROM OLD) EXECUTE FUNCTION refuse_change('a commit never changes');

CREATE TABLE partition_versions (
    dataset_version uuid NOT NULL,
    partition_key text NOT NULL,
    valid_from bigint NOT NULL,
    valid_to bigint,
    commits int8range NOT NULL GENERATED ALWAYS AS (int8range(valid_from, valid_to)) STORED,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    block_range int8range,
    location text NOT NULL,
    files jsonb NOT NULL DEFAULT '[]',
    row_count bigint,
    bytes bigint,
    PRIMARY KEY (dataset_version, partition_key, valid_from),
    CONSTRAINT partition_versions_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT partition_versions_from_a_commit
        FOREIGN KEY (dataset_uuid, valid_from) REFERENCES commits (dataset_uuid, number),
    CONSTRAINT partition_versions_to_a_commit
        FOREIGN KEY (dataset_uuid, valid_to) REFERENCES commits (dataset_uuid, number),
    CONSTRAINT partition_versions_end_after_start CHECK (valid_to > valid_from),
    CONSTRAINT partition_versions_range_is_finite CHECK (is_block_range(block_range)),
    CONSTRAINT partition_versions_key_is_the_range CHECK (partition_key = block_range_key(block_range)),
    CONSTRAINT partition_versions_files_is_a_list CHECK (jsonb_typeof(files) = 'array'),
    CONSTRAINT partition_versions_sizes_are_not_negative CHECK (row_count >= 0 AND bytes >= 0),
    -- Checked at the end of a statement, so that one statement may close a partition and open its successor.
    CONSTRAINT partition_versions_ranges_do_not_overlap EXCLUDE USING gist (
        uuid_span(dataset_version, dataset_version, '[]') WITH &&, block_range WITH &&, commits WITH &&
    ) WHERE (block_range IS NOT NULL) DEFERRABLE INITIALLY IMMEDIATE,
    CONSTRAINT partition_versions_one_at_a_time EXCLUDE USING gist (
        uuid_span(dataset_version, dataset_version, '[]') WITH &&,
        text_span(partition_key, partition_key, '[]') WITH &&,
        commits WITH &&
    ) WHERE (block_range IS NULL) DEFERRABLE INITIALLY IMMEDIATE
);
COMMENT ON TABLE partition_versions IS
    'What a partition held from one commit to another. At any commit, the partitions of a generation do not overlap.';
COMMENT ON COLUMN partition_versions.dataset_version IS 'The generation.';
COMMENT ON COLUMN partition_versions.valid_from IS 'The commit that put it in force.';
COMMENT ON COLUMN partition_versions.valid_to IS 'The commit that replaced it; NULL: it is in force.';
COMMENT ON COLUMN partition_versions.commits IS 'Both as a range: read as of commit n is `commits @> n`.';
COMMENT ON COLUMN partition_versions.block_range IS 'Half-open; NULL for a partition that is no range of blocks.';
COMMENT ON COLUMN partition_versions.files IS 'What the marker listed: key, rows, bytes and checksum of each file.';
CREATE INDEX idx_partition_versions_in_force ON partition_versions (dataset_version, partition_key) WHERE valid_to IS NULL;
COMMENT ON INDEX idx_partition_versions_in_force IS 'What a generation holds now.';
CREATE TRIGGER partition_versions_only_end BEFORE UPDATE ON partition_versions
    FOR EACH ROW WHEN (
        OLD.valid_to IS NOT NULL
        OR (NEW.dataset_version, NEW.partition_key, NEW.valid_from, NEW.org_id, NEW.dataset_uuid, NEW.block_range,
            NEW.location, NEW.files, NEW.row_count, NEW.bytes)
        IS DISTINCT FROM
           (OLD.dataset_version, OLD.partition_key, OLD.valid_from, OLD.org_id, OLD.dataset_uuid, OLD.block_range,
            OLD.location, OLD.files, OLD.row_count, OLD.bytes)
    )
    EXECUTE FUNCTION refuse_change('a partition version changes once: when a later commit ends it');

CREATE TABLE task_inputs (
    task_id uuid NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    attempt integer NOT NULL DEFAULT 1,
    org_id uuid NOT NULL,
    input_dataset_uuid uuid NOT NULL,
    input_dataset_version uuid NOT NULL,
    input_partition_key text NOT NULL DEFAULT '',
    input_commit bigint,
    input_version timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task_id, attempt, input_dataset_uuid, input_partition_key),
    CONSTRAINT task_inputs_version_of_same_dataset
        FOREIGN KEY (org_id, input_dataset_uuid, input_dataset_version)
        REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT task_inputs_commit_of_same_dataset
        FOREIGN KEY (input_dataset_uuid, input_commit) REFERENCES commits (dataset_uuid, number),
    CONSTRAINT task_inputs_attempt_from_one CHECK (attempt >= 1)
);
COMMENT ON TABLE task_inputs IS 'What each attempt of a task read, for lineage and memoisation.';
COMMENT ON COLUMN task_inputs.input_partition_key IS 'Empty: not partitioned.';
COMMENT ON COLUMN task_inputs.input_commit IS 'The commit that was pinned; NULL: the dataset had none yet.';
COMMENT ON COLUMN task_inputs.input_version IS 'When it was pinned, for display; memoisation compares version and commit.';

CREATE TABLE dataset_cursors (
    job_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    org_id uuid NOT NULL,
    cursor_value bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, dataset_uuid, dataset_version),
    CONSTRAINT dataset_cursors_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT dataset_cursors_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT dataset_cursors_from_zero CHECK (cursor_value >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE dataset_cursors IS
    'How far a job has read an input. Only rises; a new generation of the input starts a row of its own.';
CREATE TRIGGER dataset_cursors_only_rise BEFORE UPDATE ON dataset_cursors
    FOR EACH ROW WHEN (NEW.cursor_value < OLD.cursor_value)
    EXECUTE FUNCTION refuse_change('a cursor never falls');
