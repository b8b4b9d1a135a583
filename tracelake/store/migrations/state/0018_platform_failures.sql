-- Attempts that the platform ended (a lost worker, an outage, no room) count against a limit of their own.

CREATE TYPE failure_fault AS ENUM ('job', 'platform');
COMMENT ON TYPE failure_fault IS 'Whose fault a failure was: the job''s own, or the platform''s.';

ALTER TABLE jobs
    ADD COLUMN max_platform_failures integer NOT NULL DEFAULT 100,
    ADD CONSTRAINT jobs_max_platform_failures_is_not_negative CHECK (max_platform_failures >= 0);
COMMENT ON COLUMN jobs.max_platform_failures IS
    'After so many attempts that the platform ended, a task has failed for good. 0: the source loop restarts it instead.';
UPDATE jobs SET max_platform_failures = 0 WHERE source ->> 'kind' = 'always_on';

ALTER TABLE tasks
    ADD COLUMN platform_failures integer NOT NULL DEFAULT 0,
    ADD COLUMN fault failure_fault;
UPDATE tasks SET fault = 'job' WHERE status = 'Failed';
ALTER TABLE tasks
    DROP CONSTRAINT tasks_attempt_within_max,
    DROP CONSTRAINT tasks_only_failed_is_retried,
    ADD CONSTRAINT tasks_attempt_within_max CHECK (attempt BETWEEN 1 AND max_attempts + platform_failures),
    ADD CONSTRAINT tasks_only_failed_is_retried CHECK (
        next_retry_at IS NULL OR (status = 'Failed' AND attempt < max_attempts + platform_failures)
    ),
    ADD CONSTRAINT tasks_platform_failures_were_attempts CHECK (platform_failures BETWEEN 0 AND attempt),
    ADD CONSTRAINT tasks_only_failed_has_a_fault CHECK ((status = 'Failed') = (fault IS NOT NULL));
COMMENT ON COLUMN tasks.max_attempts IS
    'Taken from the job; a retry by hand raises it. Attempts that the platform ended do not count against it.';
COMMENT ON COLUMN tasks.platform_failures IS 'How many of its attempts the platform ended.';
COMMENT ON COLUMN tasks.fault IS 'Failed only: whose fault the end of the current attempt was.';

ALTER TABLE task_attempts ADD COLUMN fault failure_fault;
UPDATE task_attempts
   SET fault = CASE outcome WHEN 'LeaseExpired' THEN 'platform' ELSE 'job' END::failure_fault
 WHERE outcome IN ('Failed', 'TimedOut', 'LeaseExpired');
ALTER TABLE task_attempts ADD CONSTRAINT task_attempts_failure_has_a_fault CHECK (
    coalesce(outcome IN ('Failed', 'TimedOut', 'LeaseExpired'), false) = (fault IS NOT NULL)
);
COMMENT ON COLUMN task_attempts.fault IS 'Whose fault its failure was; NULL: it did not fail.';
