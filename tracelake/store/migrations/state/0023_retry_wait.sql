-- One place for how long a retry waits, and a count of the workers that a task may have ended.

CREATE FUNCTION retry_wait(first_seconds float8, longest_seconds float8, failures integer) RETURNS interval
LANGUAGE sql VOLATILE
RETURN make_interval(secs => least(first_seconds * 2.0 ^ greatest(0, least(failures - 1, 30)), longest_seconds)
                             * (0.5 + random() / 2));
COMMENT ON FUNCTION retry_wait IS
    'Until the attempt after so many failures of one kind: doubling up to the longest wait. Half of it is chance, so that tasks lost together come back apart.';

ALTER TABLE tasks
    ADD COLUMN lost_alone integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT tasks_lost_alone_is_not_negative CHECK (lost_alone >= 0);
COMMENT ON COLUMN tasks.lost_alone IS 'How many workers fell silent while they ran this task and nothing else.';
