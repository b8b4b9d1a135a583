-- name: lock_left
-- The generation that left service first, at least $1 ago (0: never), or was dropped; locked; only one of files. Those of
-- compactions stay unless they were dropped, since all of them together are the copy of a hot table. So do those that a
-- running task reads, and those that have been removed.
SELECT v.id AS dataset_version, v.dataset_uuid, v.org_id, v.storage_location
  FROM dataset_versions v
 WHERE (v.left_at = '-infinity' OR ($1::interval > interval '0' AND v.left_at < now() - $1::interval))
   AND v.generation IS NULL AND v.storage_location LIKE 's3://%'
   AND EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = v.id)
   AND NOT EXISTS (
       SELECT FROM dag_version_datasets s JOIN running_versions c ON c.dag_version_id = s.dag_version_id
        WHERE s.dataset_version = v.id)
   AND (v.left_at = '-infinity' OR NOT EXISTS (
       SELECT FROM dag_version_datasets s
         JOIN jobs j ON j.dag_version_id = s.dag_version_id AND s.dataset_uuid = ANY (j.output_datasets)
        WHERE s.dataset_version = v.id AND j.operator = 'parquet_compact'))
   AND NOT EXISTS (
       SELECT FROM tasks t JOIN task_inputs i ON i.task_id = t.id AND i.attempt = t.attempt
        WHERE t.status = 'Running' AND i.input_dataset_version = v.id)
 ORDER BY v.left_at
 LIMIT 1
   FOR NO KEY UPDATE OF v SKIP LOCKED;

-- name: remove_generation
-- Removes the partitions of a generation, and forgets what the jobs that wrote it have done: keys, processed inputs and state. So a
-- version that is activated again builds it anew. Generations that were removed before, and kept files for this one, are
-- looked at again. How many partitions.
WITH writers AS MATERIALIZED (
    SELECT j.id, j.lineage_id
      FROM dag_version_datasets s
      JOIN jobs j ON j.dag_version_id = s.dag_version_id AND s.dataset_uuid = ANY (j.output_datasets)
     WHERE s.dataset_version = $1
), recorded AS (
    INSERT INTO removed_generations (org_id, dataset_uuid, dataset_version, up_to_commit, storage_location)
    SELECT v.org_id, v.dataset_uuid, v.id, coalesce(h.last_commit, 0), v.storage_location
      FROM dataset_versions v LEFT JOIN dataset_heads h ON h.dataset_uuid = v.dataset_uuid
     WHERE v.id = $1
    RETURNING id
), released AS (
    UPDATE tasks t SET dedupe_key = t.dedupe_key || ':removed:' || r.id
      FROM writers w, recorded r
     WHERE t.job_id = w.id AND t.dedupe_key IS NOT NULL AND t.status IN ('Completed', 'Failed', 'Canceled')
), processed AS (
    DELETE FROM processed_inputs p WHERE p.lineage_id IN (SELECT w.lineage_id FROM writers w)
), states AS (
    DELETE FROM operator_state s USING writers w WHERE s.job_id = w.id
), reopened AS (
    UPDATE removed_generations g SET files_deleted_at = NULL
      FROM dataset_versions v
     WHERE v.id = $1 AND v.shares_files AND g.dataset_uuid = v.dataset_uuid AND g.dataset_version <> v.id
       AND g.files_deleted_at IS NOT NULL
       AND EXISTS (SELECT FROM partition_versions p
                    WHERE p.dataset_version = v.id AND starts_with(p.location, g.storage_location))
), removed AS (
    DELETE FROM partition_versions WHERE dataset_version = $1 RETURNING 1
)
SELECT count(*) FROM removed;

-- name: list_undeleted
-- Removed generations whose files are not deleted yet, the first ones.
SELECT id, dataset_uuid, storage_location, removed_at FROM removed_generations WHERE files_deleted_at IS NULL ORDER BY id LIMIT $1;

-- name: list_later_attempts
-- Attempts that have written to a dataset since: a version that serves the generation again may have been activated.
SELECT a.task_id, a.attempt
  FROM task_attempts a
  JOIN tasks t ON t.id = a.task_id
  JOIN jobs j ON j.id = t.job_id
 WHERE a.started_at > $2 AND $1 = ANY (j.output_datasets);

-- name: mark_deleted
-- Records that the files of a removed generation are deleted.
UPDATE removed_generations SET files_deleted_at = now() WHERE id = $1;

-- name: find_use
-- Who uses a dataset: whether an active version serves it, which other DAGs read it, and whether its rows are in a table.
SELECT d.producer_dag_name AS dag,
       EXISTS (SELECT FROM dag_version_datasets s JOIN dag_current_versions c ON c.dag_version_id = s.dag_version_id
                WHERE s.dataset_uuid = d.id) AS is_served,
       ARRAY(SELECT DISTINCT j.dag_name FROM job_inputs i JOIN jobs j ON j.id = i.job_id
              WHERE i.dataset_uuid = d.id AND i.live AND j.dag_name <> d.producer_dag_name ORDER BY 1) AS readers,
       EXISTS (SELECT FROM dataset_versions v
                WHERE v.dataset_uuid = d.id AND v.storage_location NOT LIKE 's3://%') AS in_tables
  FROM datasets d
 WHERE d.org_id = $1 AND d.id = $2;

-- name: mark_dropped
-- Marks the generations of a dataset that have partitions for removal at once. How many.
WITH marked AS (
    UPDATE dataset_versions v SET left_at = '-infinity'
     WHERE v.org_id = $1 AND v.dataset_uuid = $2 AND v.generation IS NULL
       AND EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = v.id)
    RETURNING 1
)
SELECT count(*) FROM marked;
