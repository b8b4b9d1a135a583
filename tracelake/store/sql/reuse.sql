-- name: plan_once
-- Statements and functions are planned once for all tasks that follow, as on the pool of the hot path.
SET LOCAL plan_cache_mode = force_generic_plan;

-- name: find_originals
-- For each of these queued tasks ($1; $2: the code of each operator) the newest completed task of the organisation with the
-- same memo key that set one partition of each of its outputs, that of the task's scope, whose files are there; a row for
-- each of these partitions, locked against removal. Work that a user asked for again is not looked up. An original that
-- read partitions without hashes of their columns has a key of all that they held. Its files are below the folder of the
-- dataset, which is what tokens grant of a generation that shares files; an earlier version had another one.
WITH asked AS MATERIALIZED (
    SELECT t.id, t.org_id, j.dag_version_id, j.output_datasets, memo_key(t.id, $2::jsonb) AS memo_key,
           CASE WHEN EXISTS (SELECT FROM job_inputs i WHERE i.job_id = j.id AND i.columns_read IS NOT NULL)
                THEN memo_key(t.id, $2::jsonb, true) END AS whole_key,
           CASE WHEN j.makes_whole THEN 'all' ELSE t.input_versions ->> 'partition_key' END AS partition_key
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
     WHERE t.id = ANY ($1::uuid[]) AND (t.status = 'Queued') IS TRUE AND t.invalidation_id IS NULL
       AND t.dedupe_key NOT LIKE '%:again:%'
), found AS MATERIALIZED (
    SELECT a.id AS task_id, a.memo_key, a.output_datasets, w.id AS original, w.completed_at, p.dataset_version, p.dataset_uuid,
           p.partition_key, lower(p.block_range) AS start, upper(p.block_range) - 1 AS "end", p.location, p.files, p.row_count,
           p.bytes, p.column_hashes, p.addresses
      FROM asked a
      JOIN tasks w ON w.org_id = a.org_id AND w.memo_key IN (a.memo_key, a.whole_key) AND w.status = 'Completed'
      JOIN commits c ON c.task_id = w.id AND c.dataset_uuid = ANY (a.output_datasets)
      JOIN partition_versions p ON p.dataset_uuid = c.dataset_uuid AND p.valid_from = c.number
      JOIN dag_version_datasets s ON s.dag_version_id = a.dag_version_id AND s.dataset_uuid = c.dataset_uuid
      JOIN dataset_versions v ON v.id = s.dataset_version
       AND starts_with(p.location, regexp_replace(v.storage_location, '[^/]+/$', ''))
     WHERE p.partition_key = a.partition_key AND p.files_removed_at IS NULL AND p.content_hash IS NOT NULL
       AND NOT EXISTS (SELECT FROM partition_versions o
                        WHERE o.dataset_uuid = c.dataset_uuid AND o.valid_from = c.number
                          AND o.partition_key <> a.partition_key)
       FOR SHARE OF p SKIP LOCKED
), chosen AS (
    SELECT DISTINCT ON (f.task_id) f.task_id, f.original
      FROM found f
     GROUP BY f.task_id, f.original, f.completed_at, f.output_datasets
    HAVING count(*) = cardinality(f.output_datasets)
     ORDER BY f.task_id, f.completed_at DESC, f.original
)
SELECT f.task_id, f.memo_key, f.original, f.dataset_uuid, f.partition_key, f.start, f."end", f.location, f.files::text, f.row_count,
       f.bytes, v.schema_hash, v.columns::text, f.column_hashes::text, f.addresses
  FROM chosen c
  JOIN found f ON f.task_id = c.task_id AND f.original = c.original
  JOIN dataset_versions v ON v.id = f.dataset_version
 ORDER BY f.task_id, f.dataset_uuid;

-- name: wake_here
-- Lets tasks be claimed by the Dispatcher, without a wake-up for workers.
UPDATE tasks SET woken_at = now() WHERE id = ANY ($1::uuid[]) AND (status = 'Queued') IS TRUE AND woken_at IS NULL;

-- name: mark_memoized
-- Records whose files tasks use that this transaction completed, behind the fence, and that these generations lie in several
-- folders now. A row for each task whose key, of what its claim pinned, is that of its original: another commit may have
-- come since that was found.
WITH reused AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[]) AS r (task_id, original, memo_key)
), sharing AS (
    UPDATE dataset_versions v SET shares_files = true WHERE v.id = ANY ($4::uuid[]) AND NOT v.shares_files
)
UPDATE tasks t
   SET memoized_from = r.original, bytes_written = 0
  FROM reused r
 WHERE t.id = r.task_id AND (t.status = 'Completed') IS TRUE AND t.memo_key = r.memo_key
RETURNING t.id;

-- name: wake_left
-- Wakes those of these tasks that are still queued, unless they wait for a slot of their job.
WITH woken AS (
    UPDATE tasks t SET woken_at = now()
      FROM jobs j
     WHERE t.id = ANY ($1::uuid[]) AND (t.status = 'Queued') IS TRUE AND t.woken_at IS NULL
       AND j.id = t.job_id AND j.max_concurrency IS NULL
    RETURNING t.id, t.org_id, t.job_id, t.priority, j.runtime
)
INSERT INTO outbox (org_id, kind, payload)
SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id) FROM woken ORDER BY id;
