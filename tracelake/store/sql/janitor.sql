-- name: first_mark
-- The mark, if nobody has made it yet.
INSERT INTO janitor_marks DEFAULT VALUES ON CONFLICT DO NOTHING;

-- name: take_mark
-- Where the janitor stands, for the one replica that gets it; the others have nothing to do.
SELECT swept_until FROM janitor_marks FOR UPDATE SKIP LOCKED;

-- name: is_swept
-- Whether the janitor has looked at attempts that began then. It will not until this transaction ends, and a sweep that
-- goes on is waited for.
SELECT swept_until >= $1 FROM janitor_marks FOR SHARE;

-- name: begun_since
-- The first attempts that began after the mark, in their order, with where their job writes files and the datasets that
-- it writes batches for; `settled` says whether nobody can be writing there any more. A source writes no files, and never
-- ends; `ended` says so of it.
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
    SELECT j.id,
           array_agg(v.storage_location) FILTER (WHERE v.storage_location LIKE 's3://%') AS locations,
           array_agg(v.dataset_uuid) FILTER (WHERE v.storage_location LIKE 'postgres\_table:buffered.%') AS buffers
      FROM jobs j
      JOIN dag_version_datasets served
        ON served.dag_version_id = j.dag_version_id AND served.dataset_uuid = ANY (j.output_datasets)
      JOIN dataset_versions v ON v.id = served.dataset_version
     WHERE j.id IN (SELECT job_id FROM begun)
     GROUP BY j.id
)
SELECT b.task_id, b.attempt, b.started_at, b.settled, b.ended, b.org_id, w.locations, w.buffers
  FROM begun b
  LEFT JOIN writing w ON w.id = b.job_id
 ORDER BY b.started_at;

-- name: named_files
-- The files in these folders that some commit names, now or in the past, unless they were to go.
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.location = ANY ($1::text[]) AND p.files_removed_at IS NULL;

-- name: published_batches
-- The batches that these attempts have published, but for those that were removed; their repaired ones too.
SELECT p.id, p.batch_uri, p.repaired_uri
  FROM unnest($1::uuid[], $2::int[]) AS a (task_id, attempt)
  JOIN buffer_publishes p ON p.task_id = a.task_id AND p.attempt = a.attempt
 WHERE p.removed_at IS NULL;

-- name: set_mark
-- Attempts that began until then were looked at.
UPDATE janitor_marks SET swept_until = $1;

-- name: delete_replaced_partitions
-- Partitions that a commit older than $1 replaced lose their files, unless a task that runs has pinned one of the
-- commits at which they were in force.
UPDATE partition_versions p
   SET files_removed_at = now()
  FROM (SELECT r.dataset_version, r.partition_key, r.valid_from
          FROM partition_versions r
          JOIN commits c ON c.dataset_uuid = r.dataset_uuid AND c.number = r.valid_to
         WHERE r.valid_to IS NOT NULL AND r.files_removed_at IS NULL AND c.created_at < now() - $1::interval
           AND NOT EXISTS (
               SELECT FROM tasks t
                 JOIN task_inputs i ON i.task_id = t.id AND i.attempt = t.attempt
                WHERE t.status = 'Running' AND i.input_dataset_uuid = r.dataset_uuid AND r.commits @> i.input_commit)
         LIMIT $2) AS old
 WHERE (p.dataset_version, p.partition_key, p.valid_from) = (old.dataset_version, old.partition_key, old.valid_from)
RETURNING p.dataset_version, p.partition_key, p.location,
          ARRAY(SELECT f ->> 'name' FROM jsonb_array_elements(p.files) AS f) AS names;
