-- name: first_mark
-- The mark, if nobody has made it yet.
INSERT INTO janitor_marks DEFAULT VALUES ON CONFLICT DO NOTHING;

-- name: take_mark
-- Where the janitor stands, for the one replica that gets it; the others have nothing to do.
SELECT swept_until FROM janitor_marks FOR UPDATE SKIP LOCKED;

-- name: begun_since
-- The first attempts that began after the mark, in their order, with where their job writes files; `settled` says
-- whether nobody can be writing there any more. A source writes no files, and never ends; `ended` says so of it.
WITH begun AS MATERIALIZED (
    SELECT a.task_id, a.attempt, a.started_at, a.ended_at IS NOT NULL AS ended, t.org_id, t.job_id,
           a.ended_at < now() - $2::interval OR t.timeout_seconds IS NULL AS settled
      FROM (SELECT task_id, attempt, started_at, ended_at
              FROM task_attempts
             WHERE started_at > $1
             ORDER BY started_at
             FETCH FIRST $3 ROWS WITH TIES) a
      JOIN tasks t ON t.id = a.task_id
), writing AS (
    SELECT j.id, array_agg(v.storage_location) AS locations
      FROM jobs j
      JOIN dag_version_datasets served
        ON served.dag_version_id = j.dag_version_id AND served.dataset_uuid = ANY (j.output_datasets)
      JOIN dataset_versions v ON v.id = served.dataset_version
     WHERE j.id IN (SELECT job_id FROM begun) AND v.storage_location LIKE 's3://%'
     GROUP BY j.id
)
SELECT b.task_id, b.attempt, b.started_at, b.settled, b.ended, b.org_id, w.locations
  FROM begun b
  LEFT JOIN writing w ON w.id = b.job_id
 ORDER BY b.started_at;

-- name: named_files
-- The files in these folders that some commit names, now or in the past.
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.location = ANY ($1::text[]);

-- name: set_mark
-- Attempts that began until then were looked at.
UPDATE janitor_marks SET swept_until = $1;
