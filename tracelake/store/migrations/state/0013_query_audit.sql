-- Who asked what of the Query service: that it was asked, about which datasets, and how it ended. Never the text.

CREATE TYPE query_verdict AS ENUM ('answered', 'refused', 'failed', 'canceled');
COMMENT ON TYPE query_verdict IS 'Rows were given; not allowed, or too much; it broke; whoever asked had gone.';

CREATE TABLE query_audit (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES orgs (id),
    user_id uuid,
    task_id uuid,
    attempt integer,
    asked_at timestamptz NOT NULL,
    sql_sha256 bytea NOT NULL,
    datasets uuid[] NOT NULL DEFAULT '{}',
    verdict query_verdict NOT NULL,
    code text,
    row_count bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    milliseconds bigint NOT NULL DEFAULT 0,
    stored_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT query_audit_user_or_task CHECK ((user_id IS NULL) <> (task_id IS NULL)),
    CONSTRAINT query_audit_task_has_attempt CHECK ((task_id IS NULL) = (attempt IS NULL)),
    CONSTRAINT query_audit_hash_is_sha256 CHECK (octet_length(sql_sha256) = 32),
    CONSTRAINT query_audit_sizes_are_not_negative CHECK (row_count >= 0 AND bytes >= 0 AND milliseconds >= 0)
);
COMMENT ON TABLE query_audit IS
    'One question to the Query service. Its id is made there, so that a row that is told twice is stored once.';
COMMENT ON COLUMN query_audit.user_id IS 'Who asked; no reference, so that the row outlives the user. NULL: a task did.';
COMMENT ON COLUMN query_audit.sql_sha256 IS 'Of the text as it came: equal questions are recognised, none is repeated.';
COMMENT ON COLUMN query_audit.datasets IS 'What it was to read, as far as that was granted.';
COMMENT ON COLUMN query_audit.code IS 'Of the refusal.';
CREATE INDEX idx_query_audit_recent ON query_audit (org_id, asked_at);
CREATE TRIGGER query_audit_never_changes BEFORE UPDATE ON query_audit
    FOR EACH ROW WHEN (NEW IS DISTINCT FROM OLD) EXECUTE FUNCTION refuse_change('what was asked stays as it was told');

CREATE INDEX idx_dag_version_datasets_generation ON dag_version_datasets (dataset_version);
COMMENT ON INDEX idx_dag_version_datasets_generation IS 'Which DAG versions serve a generation: where a hot one has its cold part.';
