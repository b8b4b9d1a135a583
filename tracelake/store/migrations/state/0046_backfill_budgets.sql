-- Tasks record what they have used, and backfills have budgets of it.

ALTER TABLE tasks
    ADD COLUMN node_requests bigint NOT NULL DEFAULT 0,
    ADD COLUMN bytes_written bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT tasks_use_not_negative CHECK (node_requests >= 0 AND bytes_written >= 0);
COMMENT ON COLUMN tasks.node_requests IS 'Calls to chain nodes of all attempts that have reported their end.';
COMMENT ON COLUMN tasks.bytes_written IS 'Bytes of the files that it has committed.';
CREATE INDEX idx_tasks_history_use ON tasks (job_id, created_at) INCLUDE (node_requests, bytes_written)
    WHERE history AND (node_requests > 0 OR bytes_written > 0);
COMMENT ON INDEX idx_tasks_history_use IS 'What tasks about data of before have used.';

ALTER TABLE backfills
    ADD COLUMN budget_requests bigint,
    ADD COLUMN budget_bytes bigint,
    ADD COLUMN stopped_because text,
    ADD CONSTRAINT backfills_use_budgets_are_positive CHECK (budget_requests >= 1 AND budget_bytes >= 1),
    ADD CONSTRAINT backfills_stopped_are_paused CHECK (stopped_because IS NULL OR status = 'Paused');
COMMENT ON COLUMN backfills.budget_requests IS 'It stops when its tasks have sent so many calls to chain nodes.';
COMMENT ON COLUMN backfills.budget_bytes IS 'It stops when its tasks have written so many bytes.';
COMMENT ON COLUMN backfills.stopped_because IS 'Which budget is used up; NULL: none, or a user paused it.';
COMMENT ON COLUMN backfills.budget_tasks IS 'It stops when it has created so many tasks.';
COMMENT ON COLUMN backfills.budget_until IS 'It stops at this time.';
