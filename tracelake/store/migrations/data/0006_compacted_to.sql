-- A hot table has one cold side: the dataset whose commits its marks name.

ALTER TABLE trace_meta.dataset_tables ADD COLUMN compacted_to uuid;
COMMENT ON COLUMN trace_meta.dataset_tables.compacted_to IS
    'The dataset that its rows are compacted into, from the first compaction on: the numbers in compacted_in are its commits, and no other''s.';
