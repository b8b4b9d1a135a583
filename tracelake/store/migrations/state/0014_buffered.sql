-- Datasets that a DAG declares and any of its jobs may write, through the sink; and what has become of each batch.

-- A declared dataset belongs to the DAG, and to none of its jobs.
ALTER TABLE datasets
    ALTER COLUMN producer_job_name DROP NOT NULL,
    ALTER COLUMN producer_output_index DROP NOT NULL,
    ADD CONSTRAINT datasets_output_of_a_job CHECK ((producer_job_name IS NULL) = (producer_output_index IS NULL));
COMMENT ON COLUMN datasets.producer_job_name IS 'NULL: declared by the DAG, and written by whichever of its jobs say so.';

CREATE TABLE buffered_datasets (
    dataset_uuid uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    dataset_version uuid NOT NULL,
    dag_name text NOT NULL,
    name text NOT NULL,
    declaration jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT buffered_datasets_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT buffered_datasets_declaration_is_whole CHECK (declaration ?& ARRAY['columns', 'unique_key', 'indexes'])
);
COMMENT ON TABLE buffered_datasets IS
    'The declaration in force of each buffered dataset: what its table has. It only becomes more.';
COMMENT ON COLUMN buffered_datasets.declaration IS 'Columns with type and nullability, unique key, indexes.';

ALTER TABLE buffer_publishes
    ADD COLUMN error_line bigint,
    ADD COLUMN seq bigint,
    ADD COLUMN row_count bigint,
    ADD COLUMN repaired_uri text,
    ADD COLUMN replays integer NOT NULL DEFAULT 0,
    ADD COLUMN removed_at timestamptz,
    ADD COLUMN owed_at timestamptz NOT NULL DEFAULT now(),
    ADD CONSTRAINT buffer_publishes_line_of_a_death CHECK (error_line IS NULL OR (status = 'Dead' AND error_line >= 1)),
    ADD CONSTRAINT buffer_publishes_committed_has_a_seq CHECK ((status = 'Committed') = (seq IS NOT NULL)),
    ADD CONSTRAINT buffer_publishes_only_committed_is_removed CHECK (removed_at IS NULL OR status = 'Committed');
COMMENT ON COLUMN buffer_publishes.error_line IS 'Of a dead one: the line of the batch, from 1, where the reason lies.';
COMMENT ON COLUMN buffer_publishes.seq IS 'Its place among the batches of its table, as data Postgres counted: the cursor of its event.';
COMMENT ON COLUMN buffer_publishes.row_count IS 'Rows of the batch, as the sink counted them.';
COMMENT ON COLUMN buffer_publishes.repaired_uri IS 'Where a person has put a repaired batch; it is read in place of the one at batch_uri.';
COMMENT ON COLUMN buffer_publishes.replays IS 'How often a person had it tried again.';
COMMENT ON COLUMN buffer_publishes.owed_at IS 'When it was last promised to the sink; long ago and not settled: its message is lost.';
COMMENT ON COLUMN buffer_publishes.removed_at IS 'When the batch was removed from the object store; its rows are in the table.';
CREATE INDEX idx_buffer_publishes_to_remove ON buffer_publishes (settled_at)
    WHERE status = 'Committed' AND removed_at IS NULL;
COMMENT ON INDEX idx_buffer_publishes_to_remove IS 'Batches that are no longer needed, the oldest first.';

ALTER TYPE outbox_kind ADD VALUE 'prepare_table';
