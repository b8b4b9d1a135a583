-- An invalidation names one partition: a range of blocks, or a label.

ALTER TABLE data_invalidations ADD COLUMN partition_key text;
UPDATE data_invalidations SET partition_key = coalesce(block_range_key(block_range), partition_keys[1]);
ALTER TABLE data_invalidations
    DROP COLUMN partition_keys,
    ALTER COLUMN partition_key SET NOT NULL,
    ADD CONSTRAINT data_invalidations_partition_is_named CHECK (partition_key <> ''),
    ADD CONSTRAINT data_invalidations_key_is_the_range CHECK (partition_key = block_range_key(block_range));
COMMENT ON COLUMN data_invalidations.partition_key IS 'The partition that no longer holds; of a range, its first and last block.';
COMMENT ON COLUMN data_invalidations.block_range IS 'Half-open; NULL: the partition has a label.';
