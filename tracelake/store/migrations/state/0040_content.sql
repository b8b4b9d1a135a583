-- What a partition holds, whatever its files are called: written again with the same content, it is no update for its readers.

ALTER TABLE partition_versions
    ADD COLUMN content_hash bytea,
    ADD COLUMN content_since bigint,
    ADD CONSTRAINT partition_versions_content_is_sha256 CHECK (octet_length(content_hash) = 32),
    ADD CONSTRAINT partition_versions_content_is_older CHECK (content_since < valid_from);
COMMENT ON COLUMN partition_versions.content_hash IS
    'The SHA-256 of its schema and of the checksums of its files, in any order; NULL: it has no files, or was committed before this column existed.';
COMMENT ON COLUMN partition_versions.content_since IS
    'The commit since which the partition has had this content, if an earlier one than valid_from: a reader that processed that one has nothing to do.';
CREATE INDEX idx_partition_versions_content_since ON partition_versions (dataset_uuid, content_since)
    WHERE valid_to IS NULL AND content_since IS NOT NULL;
COMMENT ON INDEX idx_partition_versions_content_since IS 'Current partitions that were written again with the same content.';

ALTER TABLE commits
    ADD COLUMN unchanged integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT commits_unchanged_is_not_negative CHECK (unchanged >= 0);
COMMENT ON COLUMN commits.unchanged IS
    'How many partitions it wrote with the content that they had already: their readers got no tasks.';
