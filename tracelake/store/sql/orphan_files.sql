-- name: first_mark
-- Inserts the mark, unless it exists.
INSERT INTO orphan_file_marks DEFAULT VALUES ON CONFLICT DO NOTHING;

-- name: lock_mark
-- Locks the mark and returns how far attempts were swept; no row while another replica holds it.
SELECT swept_until FROM orphan_file_marks FOR UPDATE SKIP LOCKED;

-- name: is_swept
-- Whether attempts that began then were swept. Waits for a running sweep, and keeps others away until the transaction
-- ends.
SELECT swept_until >= $1 FROM orphan_file_marks FOR SHARE;

-- name: list_attempts
-- The first attempts that began after the mark, in their order, with the locations and buffered datasets that their job
-- writes. `settled`: the attempt can no longer write there. A source writes no files and does not end: it is settled but
-- not `ended`.
WITH attempts AS MATERIALIZED (
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
     WHERE j.id IN (SELECT job_id FROM attempts)
     GROUP BY j.id
)
SELECT b.task_id, b.attempt, b.started_at, b.settled, b.ended, b.org_id, w.locations, w.buffers
  FROM attempts b
  LEFT JOIN writing w ON w.id = b.job_id
 ORDER BY b.started_at;

-- name: list_referenced_files
-- The files in these folders that a commit references, present or past, unless they were marked as removed.
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.location = ANY ($1::text[]) AND p.files_removed_at IS NULL;

-- name: list_published_batches
-- The batches that these attempts have published, and their repaired ones, unless they were deleted.
SELECT p.id, p.batch_uri, p.repaired_uri
  FROM unnest($1::uuid[], $2::int[]) AS a (task_id, attempt)
  JOIN buffer_publishes p ON p.task_id = a.task_id AND p.attempt = a.attempt
 WHERE p.removed_at IS NULL;

-- name: move_mark
-- Records how far attempts were swept.
UPDATE orphan_file_marks SET swept_until = $1;

-- name: mark_replaced_partitions
-- Marks the files of partitions as removed that were replaced by a commit older than $1, unless a running task has pinned
-- a commit at which they were current, or a partition that is current or was replaced later has the same files.
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
           AND NOT EXISTS (
               SELECT FROM partition_versions o
                 LEFT JOIN commits e ON e.dataset_uuid = o.dataset_uuid AND e.number = o.valid_to
                WHERE o.location = r.location AND o.files_removed_at IS NULL AND o.files = r.files
                  AND (o.dataset_version, o.valid_from) <> (r.dataset_version, r.valid_from)
                  AND (o.valid_to IS NULL OR e.created_at >= now() - $1::interval))
         LIMIT $2) AS old
 WHERE (p.dataset_version, p.partition_key, p.valid_from) = (old.dataset_version, old.partition_key, old.valid_from)
RETURNING p.dataset_version, p.partition_key, p.location,
          ARRAY(SELECT f ->> 'name' FROM jsonb_array_elements(p.files) AS f) AS names;
