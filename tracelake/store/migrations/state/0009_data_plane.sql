-- What workers need to read and write files: how a DAG calls its inputs, which of them make tasks, and schemas in full.

ALTER TABLE job_inputs
    ADD COLUMN name text NOT NULL DEFAULT '',
    ADD COLUMN triggers boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN job_inputs.name IS 'How the DAG calls this input: the name of its table in SQL.';
COMMENT ON COLUMN job_inputs.triggers IS 'Whether its updates make tasks; false: it is only read.';

ALTER TABLE dataset_versions
    ADD COLUMN columns jsonb;
COMMENT ON COLUMN dataset_versions.columns IS 'Name and type of each, as its first commit had them; schema_hash is made from it.';
