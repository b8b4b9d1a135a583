-- Where rows live: the hot tables of datasets, and a register of them.

CREATE SCHEMA hot;
COMMENT ON SCHEMA hot IS 'Tables of datasets; made, written and owned by workers, read by the query service.';

CREATE SCHEMA trace_meta;
COMMENT ON SCHEMA trace_meta IS 'What Trace knows about the tables in hot.';

CREATE TABLE trace_meta.dataset_tables (
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    org_id uuid NOT NULL,
    table_name text NOT NULL,
    columns jsonb NOT NULL,
    unique_key text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_uuid, dataset_version),
    CONSTRAINT dataset_tables_table_once UNIQUE (table_name),
    CONSTRAINT dataset_tables_name_is_snake CHECK (table_name ~ '^[a-z][a-z0-9_]{0,62}$'),
    CONSTRAINT dataset_tables_columns_are_listed CHECK (
        jsonb_typeof(columns) = 'array' AND columns <> '[]'
    ),
    CONSTRAINT dataset_tables_key_names_columns CHECK (
        cardinality(unique_key) > 0 AND array_position(unique_key, NULL) IS NULL
    )
);
COMMENT ON TABLE trace_meta.dataset_tables IS
    'Which table in hot holds which generation of which dataset; a table never holds two.';
COMMENT ON COLUMN trace_meta.dataset_tables.org_id IS
    'Whose it is. The dataset itself is known to the state database only, which this one cannot reach.';
COMMENT ON COLUMN trace_meta.dataset_tables.table_name IS 'Within schema hot.';
COMMENT ON COLUMN trace_meta.dataset_tables.columns IS 'Name, type and nullability of each, in order.';
COMMENT ON COLUMN trace_meta.dataset_tables.unique_key IS 'What rows are upserted by, besides org_id.';
