-- Buffered datasets: tables with many writers, filled by the sink alone, and which batches they hold.

CREATE SCHEMA buffered;
COMMENT ON SCHEMA buffered IS 'Tables of buffered datasets; made, filled and widened by the sink, read by workers and the query service.';

CREATE SEQUENCE trace_meta.publish_seq;
COMMENT ON SEQUENCE trace_meta.publish_seq IS 'Every batch draws one, under the lock of its table: within a table, a higher one was committed later.';

CREATE TABLE trace_meta.buffered_tables (
    dataset_version uuid PRIMARY KEY,
    dataset_uuid uuid NOT NULL,
    org_id uuid NOT NULL,
    table_name text NOT NULL,
    declaration jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT buffered_tables_table_once UNIQUE (table_name),
    CONSTRAINT buffered_tables_name_is_plain CHECK (table_name ~ '^b_[0-9a-f]{32}$')
);
COMMENT ON TABLE trace_meta.buffered_tables IS 'Which table in buffered holds which dataset, and what it has; whoever changes a table locks its row.';
COMMENT ON COLUMN trace_meta.buffered_tables.declaration IS 'Columns with type and nullability, unique key, indexes: as the control plane has accepted them.';

CREATE TABLE trace_meta.applied_batches (
    publish_id uuid PRIMARY KEY,
    dataset_version uuid NOT NULL
        CONSTRAINT applied_batches_of_a_table REFERENCES trace_meta.buffered_tables (dataset_version) ON DELETE CASCADE,
    seq bigint NOT NULL,
    row_count bigint NOT NULL,
    byte_count bigint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT applied_batches_seq_once UNIQUE (seq)
);
COMMENT ON TABLE trace_meta.applied_batches IS 'Batches whose rows are in their table; written with the rows, so that a batch that comes again changes nothing.';
COMMENT ON COLUMN trace_meta.applied_batches.seq IS 'Also in each of its rows, until another batch writes them again.';
