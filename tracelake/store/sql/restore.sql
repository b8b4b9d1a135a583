-- name: count_tables
-- Counts the tables of a database, of any schema.
SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema');

-- name: insert_restore
-- Starts an epoch. Tokens of earlier ones are refused, and numbers of attempts and commits continue above theirs.
INSERT INTO restores (epoch, backup_id, backed_up_at) VALUES (%s, %s, %s);

-- name: delete_signing_keys
-- Forgets the keys of capability tokens, as before the first start: a new one signs at once.
DELETE FROM signing_keys;

-- name: end_attempts
-- Ends every attempt that ran when the backup was made. It was no fault of the job; sources are started again by their
-- own loop.
WITH ended AS (
    UPDATE tasks t
       SET status = 'Failed', completed_at = now(), lease_expires_at = NULL,
           fault = 'platform', platform_failures = t.platform_failures + 1,
           error_message = format('attempt %%s ran when the backup was made from which the system was restored', t.attempt),
           next_retry_at = CASE WHEN j.max_platform_failures > 0 THEN now() END
      FROM jobs j
     WHERE t.status = 'Running' AND j.id = t.job_id
    RETURNING t.id, t.attempt, t.error_message
)
UPDATE task_attempts h
   SET ended_at = now(), outcome = 'LeaseExpired', fault = 'platform', error_message = e.error_message
  FROM ended e
 WHERE h.task_id = e.id AND h.attempt = e.attempt;

-- name: replace_leases
-- Replaces the lease tokens of attempts that have ended without a report: their workers, which may still run, can report
-- nothing any more.
UPDATE tasks SET lease_token = gen_random_uuid()
 WHERE status = 'Failed' AND completion_hash IS NULL AND lease_token IS NOT NULL;

-- name: renumber_queued
-- Gives queued attempts the numbers of the new epoch: in the lost time, attempts with the former numbers may have run.
UPDATE tasks
   SET attempt = next_attempt(attempt - 1), skipped_attempts = skipped_attempts + next_attempt(attempt - 1) - attempt
 WHERE status = 'Queued';

-- name: wake_queued
-- Writes wake-ups for all queued tasks: messages may have been received and not acted on when the backup was made.
INSERT INTO outbox (org_id, kind, payload)
SELECT t.org_id, 'enqueue_task', wake_up_of(t.id, j.runtime, t.priority, t.org_id, t.job_id)
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
 WHERE t.status = 'Queued' AND t.woken_at IS NOT NULL;

-- name: release_outbox
-- Lets the next replica take the outbox entries that one had taken when the backup was made.
UPDATE outbox SET taken_until = now() WHERE status = 'Processing';
