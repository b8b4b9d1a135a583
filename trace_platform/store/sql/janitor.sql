-- name: take_ended
-- Attempts that ended longer than $1 ago and were not looked at, with where their job writes files. Locked: replicas
-- share the work.
SELECT a.task_id, a.attempt,
       (SELECT array_agg(v.storage_location)
          FROM dag_version_datasets served JOIN dataset_versions v ON v.id = served.dataset_version
         WHERE served.dag_version_id = j.dag_version_id AND served.dataset_uuid = ANY (j.output_datasets)
           AND v.storage_location LIKE 's3://%') AS locations
  FROM task_attempts a
  JOIN tasks t ON t.id = a.task_id
  JOIN jobs j ON j.id = t.job_id
 WHERE a.swept_at IS NULL AND a.ended_at < now() - $1::interval
 ORDER BY a.ended_at
 LIMIT $2
   FOR UPDATE OF a SKIP LOCKED;

-- name: named_files
-- The files in these folders that some commit names, now or in the past.
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.location = ANY ($1::text[]);

-- name: mark_swept
-- They were looked at.
UPDATE task_attempts a SET swept_at = now()
  FROM unnest($1::uuid[], $2::int[]) AS s (task_id, attempt)
 WHERE a.task_id = s.task_id AND a.attempt = s.attempt;

-- name: next_ended
-- Seconds until the oldest is due.
SELECT extract(epoch FROM min(ended_at) + $1::interval - now())::float8
  FROM task_attempts WHERE swept_at IS NULL AND ended_at IS NOT NULL;
