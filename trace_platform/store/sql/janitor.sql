-- name: first_mark
-- The mark, if nobody has made it yet.
INSERT INTO janitor_marks DEFAULT VALUES ON CONFLICT DO NOTHING;

-- name: take_mark
-- Where the janitor stands, for the one replica that gets it; the others have nothing to do.
SELECT swept_until FROM janitor_marks FOR UPDATE SKIP LOCKED;

-- name: first_begun
-- When the first attempt after the mark began.
SELECT min(started_at) FROM task_attempts WHERE started_at > $1;

-- name: begun_since
-- Attempts that began after the mark, within an hour of the first of them, in their order, with where their job writes
-- files; `settled` says whether nobody can be writing there any more. A source writes no files, and never ends.
SELECT a.task_id, a.attempt, a.started_at,
       a.ended_at < now() - $3::interval OR t.timeout_seconds IS NULL AS settled,
       (SELECT array_agg(v.storage_location)
          FROM dag_version_datasets served JOIN dataset_versions v ON v.id = served.dataset_version
         WHERE served.dag_version_id = j.dag_version_id AND served.dataset_uuid = ANY (j.output_datasets)
           AND v.storage_location LIKE 's3://%') AS locations
  FROM task_attempts a
  JOIN tasks t ON t.id = a.task_id
  JOIN jobs j ON j.id = t.job_id
 WHERE a.started_at > $1 AND a.started_at <= $2::timestamptz + interval '1 hour'
 ORDER BY a.started_at
 FETCH FIRST $4 ROWS WITH TIES;

-- name: named_files
-- The files in these folders that some commit names, now or in the past.
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.location = ANY ($1::text[]);

-- name: set_mark
-- Attempts that began until then were looked at.
UPDATE janitor_marks SET swept_until = $1;
