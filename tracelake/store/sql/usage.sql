-- name: list_table_sizes
-- The tables of the state database by size, with the rows that statistics know of.
SELECT s.relname AS "table", pg_total_relation_size(s.relid) AS bytes, s.n_live_tup AS rows
  FROM pg_stat_user_tables s
 WHERE s.schemaname = 'public'
 ORDER BY 2 DESC, 1;

-- name: list_generation_sizes
-- The generations of an organisation by size: files of current and of replaced partitions, and what was committed within a
-- week. Files of rows in Postgres are not counted here.
SELECT d.id AS dataset_uuid, d.name AS dataset, d.producer_dag_name AS dag, d.producer_job_name AS job,
       v.id AS dataset_version, EXISTS (
           SELECT FROM dag_current_versions c
             JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
            WHERE c.org_id = d.org_id AND s.dataset_version = v.id) AS current,
       p.current_bytes, p.replaced_bytes, p.current_rows, p.partitions, w.week_bytes, w.week_commits
  FROM dataset_versions v
  JOIN datasets d ON d.id = v.dataset_uuid
  CROSS JOIN LATERAL (
      SELECT coalesce(sum(bytes) FILTER (WHERE valid_to IS NULL), 0)::bigint AS current_bytes,
             coalesce(sum(bytes) FILTER (WHERE valid_to IS NOT NULL AND files_removed_at IS NULL), 0)::bigint
                 AS replaced_bytes,
             coalesce(sum(row_count) FILTER (WHERE valid_to IS NULL), 0)::bigint AS current_rows,
             count(*) FILTER (WHERE valid_to IS NULL) AS partitions
        FROM partition_versions WHERE dataset_version = v.id) p
  CROSS JOIN LATERAL (
      SELECT coalesce(sum(c.bytes), 0)::bigint AS week_bytes, count(*) AS week_commits
        FROM commits c
       WHERE c.created_at > now() - interval '7 days' AND c.dataset_uuid = d.id AND c.dataset_version = v.id) w
 WHERE v.org_id = $1 AND v.block_range IS NULL
 ORDER BY p.current_bytes + p.replaced_bytes DESC, d.name, v.id
 LIMIT $2;

-- name: count_old_rows
-- What keeping each kind for $2 days would delete at most, of an organisation: rows, and bytes of files. What is still
-- needed stays nevertheless.
SELECT 'tasks' AS kind, count(*) AS rows, 0::bigint AS bytes
  FROM tasks WHERE org_id = $1 AND completed_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'events', count(*), 0 FROM events
 WHERE org_id = $1 AND created_at < now() - $2 * interval '1 day' AND origin IN ('task', 'sink')
UNION ALL
SELECT 'invalidations', count(*), 0 FROM data_invalidations
 WHERE org_id = $1 AND created_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'records of batches', count(*), 0 FROM buffer_publishes
 WHERE org_id = $1 AND status = 'Committed' AND settled_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'outbox entries', count(*), 0 FROM outbox
 WHERE org_id = $1 AND status = 'Done' AND processed_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'log lines', count(*), 0 FROM task_logs l JOIN tasks t ON t.id = l.task_id
 WHERE t.org_id = $1 AND l.received_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'audit of queries', count(*), 0 FROM query_audit
 WHERE org_id = $1 AND stored_at < now() - $2 * interval '1 day'
UNION ALL
SELECT 'files of replaced partitions', coalesce(sum(jsonb_array_length(p.files)), 0)::bigint, coalesce(sum(p.bytes), 0)::bigint
  FROM partition_versions p
  JOIN commits c ON c.dataset_uuid = p.dataset_uuid AND c.number = p.valid_to
 WHERE p.org_id = $1 AND p.files_removed_at IS NULL AND c.created_at < now() - $2 * interval '1 day';
