-- Attempts that have ended leave files; how far they were looked at is kept, so that each is looked at once.

CREATE TABLE janitor_marks (
    only_one boolean PRIMARY KEY DEFAULT true,
    swept_until timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT janitor_marks_has_one_row CHECK (only_one)
);
COMMENT ON TABLE janitor_marks IS 'Where the janitor stands; one row, and whoever locks it is the one replica that sweeps.';
COMMENT ON COLUMN janitor_marks.swept_until IS
    'Attempts that started until then were looked at: what they wrote and no commit names is gone.';

-- Attempts lie in the order in which they began, and a beginning never changes: a summary finds those of some hour.
CREATE INDEX idx_task_attempts_begun ON task_attempts USING brin (started_at)
    WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON INDEX idx_task_attempts_begun IS 'The attempts that began in some hour, for the janitor.';
