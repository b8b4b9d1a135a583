-- `trace why DATASET` asks for a dataset's newest event, which may be older than millions of others.

CREATE INDEX idx_events_dataset ON events (dataset_uuid, created_at);
COMMENT ON INDEX idx_events_dataset IS 'The events of one dataset, newest last.';
