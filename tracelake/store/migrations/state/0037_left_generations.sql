-- Generations that no active version serves any more are removed after some time; what was removed is recorded.

ALTER TABLE dataset_versions ADD COLUMN left_at timestamptz;
COMMENT ON COLUMN dataset_versions.left_at IS
    'When the last active version that served this generation was replaced or deactivated; NULL: one serves it, or none has yet.';
CREATE INDEX idx_dataset_versions_left ON dataset_versions (left_at) WHERE left_at IS NOT NULL;
COMMENT ON INDEX idx_dataset_versions_left IS 'Generations that no version serves any more, the oldest first.';

CREATE FUNCTION follow_served_generations() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dataset_versions v
       SET left_at = CASE WHEN served.is_served THEN NULL ELSE coalesce(v.left_at, now()) END
      FROM (SELECT p.dataset_version, EXISTS (
                       SELECT FROM dag_version_datasets s
                         JOIN dag_current_versions c ON c.dag_version_id = s.dag_version_id
                        WHERE s.dataset_version = p.dataset_version) AS is_served
              FROM dag_version_datasets p
             WHERE p.dag_version_id IN (
                   CASE WHEN TG_OP <> 'INSERT' THEN OLD.dag_version_id END,
                   CASE WHEN TG_OP <> 'DELETE' THEN NEW.dag_version_id END)) served
     WHERE v.id = served.dataset_version AND (v.left_at IS NULL) <> served.is_served;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION follow_served_generations IS 'Maintains dataset_versions.left_at when the active version of a DAG changes.';
-- At the end of the transaction: a completion locks its task before the generation, and an activation must too.
CREATE CONSTRAINT TRIGGER dag_current_versions_set_left AFTER INSERT OR UPDATE OR DELETE ON dag_current_versions
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION follow_served_generations();

UPDATE dataset_versions v
   SET left_at = now()
 WHERE v.generation IS NULL
   AND EXISTS (SELECT FROM commits c WHERE c.dataset_uuid = v.dataset_uuid AND c.dataset_version = v.id)
   AND NOT EXISTS (
       SELECT FROM dag_version_datasets s JOIN dag_current_versions c ON c.dag_version_id = s.dag_version_id
        WHERE s.dataset_version = v.id);

CREATE TABLE removed_generations (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    dataset_version uuid NOT NULL,
    up_to_commit bigint NOT NULL,
    storage_location text NOT NULL,
    removed_at timestamptz NOT NULL DEFAULT now(),
    files_deleted_at timestamptz,
    CONSTRAINT removed_generations_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id)
);
COMMENT ON TABLE removed_generations IS
    'A generation whose partitions were removed; its commits stay in the ledger. It may be built and removed again.';
COMMENT ON COLUMN removed_generations.up_to_commit IS 'The last commit of the dataset when it was removed.';
COMMENT ON COLUMN removed_generations.files_deleted_at IS 'When its files had been deleted from the object store; NULL: not yet.';
CREATE INDEX idx_removed_generations_version ON removed_generations (dataset_version);
COMMENT ON INDEX idx_removed_generations_version IS 'Removals of a generation, for the ledger.';
CREATE INDEX idx_removed_generations_files ON removed_generations (id) WHERE files_deleted_at IS NULL;
COMMENT ON INDEX idx_removed_generations_files IS 'Removed generations whose files are to be deleted.';
