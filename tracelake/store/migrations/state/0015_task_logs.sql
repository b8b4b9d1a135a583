-- What tasks say while they run, for people.

CREATE TYPE log_level AS ENUM ('debug', 'info', 'warning', 'error');

CREATE TABLE task_logs (
    task_id uuid NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    attempt integer NOT NULL,
    n integer NOT NULL,
    at timestamptz NOT NULL,
    said_at timestamptz NOT NULL DEFAULT now(),
    level log_level NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (task_id, attempt, n),
    CONSTRAINT task_logs_count_from_zero CHECK (n >= 0)
);
COMMENT ON TABLE task_logs IS 'Lines of an attempt, as many as it has room for.';
COMMENT ON COLUMN task_logs.n IS 'How many lines came before it: said again, a line is kept once.';
COMMENT ON COLUMN task_logs.at IS 'When, by the clock of whoever said it.';
COMMENT ON COLUMN task_logs.said_at IS 'When it reached us: how long it is kept counts from here.';
CREATE INDEX idx_task_logs_age ON task_logs USING brin (said_at);
COMMENT ON INDEX idx_task_logs_age IS 'What is old enough to be forgotten.';
