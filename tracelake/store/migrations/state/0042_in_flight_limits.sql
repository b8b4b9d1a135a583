-- Limits of tasks in flight that all jobs of an operator or of a runtime share.

CREATE TABLE in_flight_limits (
    kind text NOT NULL,
    name text NOT NULL,
    max_in_flight integer NOT NULL,
    PRIMARY KEY (kind, name),
    CONSTRAINT in_flight_limits_kind_is_known CHECK (kind IN ('operator', 'runtime')),
    CONSTRAINT in_flight_limits_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT in_flight_limits_allow_one CHECK (max_in_flight >= 1)
);
COMMENT ON TABLE in_flight_limits IS
    'How many tasks of an operator or a runtime may be in flight at once, of all organisations. Written by the Dispatcher when it starts, from its settings.';
COMMENT ON COLUMN in_flight_limits.kind IS 'Whether the name is that of an operator or of a runtime.';
COMMENT ON COLUMN in_flight_limits.name IS 'The operator or the runtime.';
COMMENT ON COLUMN in_flight_limits.max_in_flight IS 'Tasks that are woken or run at once, at most. Always-on sources do not count.';

ALTER TABLE jobs ADD COLUMN shares_limit boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN jobs.shares_limit IS 'Whether in_flight_limits has a row for its operator or its runtime.';

ALTER TABLE jobs ALTER COLUMN max_concurrency SET EXPRESSION AS (
    coalesce((scaling ->> 'max_concurrency')::integer, CASE WHEN shares_limit THEN 2147483647 END)
);
COMMENT ON COLUMN jobs.max_concurrency IS
    'Extracted from scaling when it is written, for the hot path; 2147483647: only a limit that it shares; NULL: no limit.';
COMMENT ON COLUMN tasks.woken_at IS
    'When its wake-up was written to the outbox; NULL: it waits for a slot of its job (max_concurrency), operator or runtime (in_flight_limits).';
