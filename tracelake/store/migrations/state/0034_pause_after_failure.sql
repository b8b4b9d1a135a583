-- A cron source with `pause_on_failure` is paused by the Dispatcher when a task of it has failed for good.

ALTER TYPE pause_reason ADD VALUE 'failure';
ALTER TABLE pauses
    ADD COLUMN cause_task_id uuid,
    DROP CONSTRAINT pauses_pressure_says_why,
    DROP CONSTRAINT pauses_by_hand_have_no_queue,
    ADD CONSTRAINT pauses_pressure_says_why CHECK (
        reason::text IN ('manual', 'failure') OR num_nulls(cause_job_id, threshold, observed) = 0
    ),
    ADD CONSTRAINT pauses_by_hand_have_no_queue CHECK (
        reason::text NOT IN ('manual', 'failure') OR num_nonnulls(cause_job_id, threshold, observed) = 0
    ),
    ADD CONSTRAINT pauses_after_failure_name_the_task CHECK ((reason::text = 'failure') = (cause_task_id IS NOT NULL));
COMMENT ON COLUMN pauses.cause_task_id IS 'The task that failed, of a source with `pause_on_failure`.';
