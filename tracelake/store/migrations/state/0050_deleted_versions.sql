-- Versions of deleted DAGs: their rows stay, because commits and tasks refer to them, and nobody sees or activates them.

CREATE TABLE deleted_versions (
    dag_version_id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    deleted_by uuid,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT deleted_versions_version_of_same_org FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id),
    CONSTRAINT deleted_versions_user_of_same_org FOREIGN KEY (org_id, deleted_by) REFERENCES users (org_id, id)
);
COMMENT ON TABLE deleted_versions IS 'Versions of DAGs that were deleted; deploying the same file again removes the row.';
COMMENT ON COLUMN deleted_versions.deleted_by IS 'Who deleted the DAG.';

CREATE VIEW known_versions AS
SELECT v.* FROM dag_versions v WHERE NOT EXISTS (SELECT FROM deleted_versions d WHERE d.dag_version_id = v.id);
COMMENT ON VIEW known_versions IS 'The versions of DAGs that were not deleted.';
