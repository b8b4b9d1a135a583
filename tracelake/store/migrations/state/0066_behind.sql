-- After an activation, a promotion or a rollback, status and queries say that a DAG has not caught up yet.

CREATE TABLE dags_behind (
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name),
    CONSTRAINT dags_behind_dag_is_active
        FOREIGN KEY (org_id, dag_name) REFERENCES dag_current_versions (org_id, dag_name) ON DELETE CASCADE
);
COMMENT ON TABLE dags_behind IS
    'Active DAGs whose jobs have not processed all that their inputs held when a version of them, or of a DAG that they read, became active.';
COMMENT ON COLUMN dags_behind.since IS 'When that was; by the last one, if there were several.';
