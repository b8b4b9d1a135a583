-- Attempts that have ended leave files; how far they were looked at is kept, so that each is looked at once.

CREATE TABLE janitor_marks (
    only_one boolean PRIMARY KEY DEFAULT true,
    swept_until timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT janitor_marks_has_one_row CHECK (only_one)
);
COMMENT ON TABLE janitor_marks IS 'Where the janitor stands; one row, and whoever locks it is the one replica that sweeps.';
COMMENT ON COLUMN janitor_marks.swept_until IS
    'Attempts that started until then were looked at: what they wrote and no commit names is gone.';

-- A beginning never changes, so that this costs one entry at its right end for each attempt, and updates nothing.
CREATE INDEX idx_task_attempts_begun ON task_attempts (started_at);
COMMENT ON INDEX idx_task_attempts_begun IS 'The attempts in the order in which they began, for the janitor.';
