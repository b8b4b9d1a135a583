-- Restores from a backup. What was issued after the backup was made (the lost time) must never be taken for what is issued
-- after the restore: tokens name the epoch, and the numbers of attempts and commits of an epoch begin above all earlier ones.

CREATE TABLE restores (
    epoch integer PRIMARY KEY,
    backup_id uuid NOT NULL,
    backed_up_at timestamptz NOT NULL,
    restored_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT restores_count_from_one CHECK (epoch BETWEEN 1 AND 1000000)
);
COMMENT ON TABLE restores IS
    'One row for each time that this database was restored from a backup. The highest epoch is the current one; without a row it is 0.';
COMMENT ON COLUMN restores.backed_up_at IS 'What happened between this and restored_at is lost.';

CREATE FUNCTION restore_epoch() RETURNS integer
LANGUAGE sql STABLE
RETURN (SELECT coalesce(max(epoch), 0) FROM restores);
COMMENT ON FUNCTION restore_epoch IS 'How often the database was restored from a backup.';

CREATE FUNCTION next_attempt(attempt integer) RETURNS integer
LANGUAGE sql STABLE
RETURN greatest(attempt + 1, (SELECT coalesce(max(epoch), 0) FROM restores) * 1000);
COMMENT ON FUNCTION next_attempt IS
    'The number of the attempt after this one. After a restore it skips the numbers that lost attempts may have had, because their workers may still write to folders with those numbers.';

CREATE FUNCTION next_commit(last_commit bigint) RETURNS bigint
LANGUAGE sql STABLE
RETURN greatest(last_commit + 1, (SELECT coalesce(max(epoch), 0) FROM restores) * 1000000000::bigint + 1);
COMMENT ON FUNCTION next_commit IS
    'The number of the commit after this one. After a restore it skips the numbers that lost commits may have had.';

ALTER TABLE tasks
    ADD COLUMN skipped_attempts integer NOT NULL DEFAULT 0,
    DROP CONSTRAINT tasks_attempt_within_max,
    DROP CONSTRAINT tasks_only_failed_is_retried,
    ADD CONSTRAINT tasks_attempt_within_max CHECK (
        attempt BETWEEN 1 AND max_attempts + platform_failures + skipped_attempts
    ),
    ADD CONSTRAINT tasks_only_failed_is_retried CHECK (
        next_retry_at IS NULL OR (status = 'Failed' AND attempt < max_attempts + platform_failures + skipped_attempts)
    ),
    ADD CONSTRAINT tasks_skipped_attempts_are_not_negative CHECK (skipped_attempts BETWEEN 0 AND attempt);
COMMENT ON COLUMN tasks.skipped_attempts IS
    'Numbers of attempts that were not used, because a restore skipped them. They do not count against max_attempts.';
