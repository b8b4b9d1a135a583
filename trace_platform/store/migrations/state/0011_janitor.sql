-- Attempts that have ended leave files; which of them were looked at is kept, so that each is looked at once.

ALTER TABLE task_attempts ADD COLUMN swept_at timestamptz;
COMMENT ON COLUMN task_attempts.swept_at IS 'When the janitor removed what this attempt wrote and no commit names.';
CREATE INDEX idx_task_attempts_unswept ON task_attempts (ended_at) WHERE swept_at IS NULL AND ended_at IS NOT NULL;
COMMENT ON INDEX idx_task_attempts_unswept IS 'What the janitor has before it, the oldest first.';
