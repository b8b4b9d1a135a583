-- Who reads a dataset is decided by admins. A DAG proposes it for a new dataset; afterwards no deploy changes it, also
-- not by publishing the dataset under another name, or another dataset under its name.

CREATE TABLE dataset_access (
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    name text NOT NULL,
    visibility dataset_visibility NOT NULL,
    read_roles text[] NOT NULL DEFAULT '{}',
    set_by uuid,
    set_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_uuid, name),
    CONSTRAINT dataset_access_dataset_of_same_org
        FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id) ON DELETE CASCADE,
    CONSTRAINT dataset_access_user_of_same_org FOREIGN KEY (org_id, set_by) REFERENCES users (org_id, id),
    CONSTRAINT dataset_access_is_of_published CHECK (visibility <> 'internal'),
    CONSTRAINT dataset_access_roles_when_by_role CHECK (visibility = 'roles' OR read_roles = '{}')
);
COMMENT ON TABLE dataset_access IS
    'Who may read a dataset under a name that it has or had; it is kept while the dataset is not published.';
COMMENT ON COLUMN dataset_access.read_roles IS 'With visibility `roles` and none of them only admins read it.';
COMMENT ON COLUMN dataset_access.set_by IS 'The admin who decided it; NULL: as the DAG proposed it.';
CREATE INDEX idx_dataset_access_name ON dataset_access (org_id, name, set_at);

INSERT INTO dataset_access (org_id, dataset_uuid, name, visibility, read_roles)
SELECT org_id, id, name, visibility, read_roles FROM datasets WHERE name IS NOT NULL;

ALTER TABLE datasets
    DROP CONSTRAINT datasets_roles_when_by_role,
    ADD CONSTRAINT datasets_roles_when_by_role CHECK (visibility = 'roles' OR read_roles = '{}');
