-- Files of partitions that were replaced long ago are removed; that they were there is remembered.

ALTER TABLE partition_versions ADD COLUMN files_removed_at timestamptz;
ALTER TABLE partition_versions ADD CONSTRAINT partition_versions_only_replaced_lose_files
    CHECK (files_removed_at IS NULL OR valid_to IS NOT NULL);
COMMENT ON COLUMN partition_versions.files_removed_at IS
    'When the files of this replaced partition were removed; a reader of a commit that needs them is refused.';

CREATE INDEX idx_partition_versions_replaced ON partition_versions (dataset_uuid, valid_to)
    WHERE valid_to IS NOT NULL AND files_removed_at IS NULL;
COMMENT ON INDEX idx_partition_versions_replaced IS 'Replaced partitions whose files are still there, for their removal.';

DROP TRIGGER partition_versions_only_end ON partition_versions;
CREATE TRIGGER partition_versions_only_end BEFORE UPDATE ON partition_versions
    FOR EACH ROW WHEN (
        (OLD.valid_to IS NOT NULL AND NEW.valid_to IS DISTINCT FROM OLD.valid_to)
        OR (OLD.files_removed_at IS NOT NULL AND NEW.files_removed_at IS DISTINCT FROM OLD.files_removed_at)
        OR (NEW.dataset_version, NEW.partition_key, NEW.valid_from, NEW.org_id, NEW.dataset_uuid, NEW.block_range,
            NEW.location, NEW.files, NEW.row_count, NEW.bytes)
        IS DISTINCT FROM
           (OLD.dataset_version, OLD.partition_key, OLD.valid_from, OLD.org_id, OLD.dataset_uuid, OLD.block_range,
            OLD.location, OLD.files, OLD.row_count, OLD.bytes)
    )
    EXECUTE FUNCTION refuse_change('a partition version changes when a later commit ends it, and when its files go');
