-- Rows that nothing needs any more are deleted: what looks them up by age or by task gets an index.

-- Without an index of its own, this check would read all events for each task that is deleted. A task is deleted only
-- after its events (`retention.sql`).
ALTER TABLE events DROP CONSTRAINT events_producer_task_id_fkey;

CREATE INDEX idx_data_invalidations_producer ON data_invalidations (producer_task_id) WHERE producer_task_id IS NOT NULL;
COMMENT ON INDEX idx_data_invalidations_producer IS 'The invalidations of a task, for its deletion.';
CREATE INDEX idx_data_invalidation_jobs_task ON data_invalidation_jobs (task_id);
COMMENT ON INDEX idx_data_invalidation_jobs_task IS 'The invalidations that a task processes, for its deletion.';
CREATE INDEX idx_buffer_publishes_removed ON buffer_publishes (settled_at) WHERE removed_at IS NOT NULL;
COMMENT ON INDEX idx_buffer_publishes_removed IS 'Batches that were deleted from the object store, the oldest first.';
