-- name: list_datasets
-- The datasets that a user may see, with their last commit.
SELECT d.id AS dataset_uuid, d.name, d.visibility::text, d.producer_dag_name AS dag, d.producer_job_name AS job,
       d.producer_output_index AS output_index, coalesce(d.storage ->> 'kind', 'parquet') AS storage,
       h.last_commit, c.created_at AS committed_at, coalesce(b.dead, 0) AS dead_batches
  FROM datasets_seen($1, $2, $3) d
  LEFT JOIN (SELECT dataset_uuid, count(*) AS dead FROM buffer_publishes
              WHERE org_id = $1 AND status = 'Dead' GROUP BY dataset_uuid) b ON b.dataset_uuid = d.id
  LEFT JOIN dataset_heads h ON h.dataset_uuid = d.id
  LEFT JOIN commits c ON c.dataset_uuid = d.id AND c.number = h.last_commit
 ORDER BY d.name IS NULL, d.name, d.producer_dag_name, d.producer_job_name, d.producer_output_index;

-- name: find_dataset
-- A dataset by uuid or name, if the user may see it.
SELECT d.id
  FROM datasets_seen($1, $2, $3) d
 WHERE d.id = $4::uuid OR d.name = $5::text;

-- name: show_dataset
-- A dataset by uuid or name: every generation with its current partitions, the last $6 commits, published ranges and
-- dead batches. The lineage names the inputs that the user may see.
SELECT jsonb_build_object(
           'dataset_uuid', d.id, 'name', d.name, 'visibility', d.visibility, 'dag', d.producer_dag_name,
           'job', d.producer_job_name, 'output_index', d.producer_output_index,
           'storage', coalesce(d.storage ->> 'kind', 'parquet'), 'read_roles', d.read_roles,
           'last_commit', (SELECT h.last_commit FROM dataset_heads h WHERE h.dataset_uuid = d.id),
           'committed_at', (SELECT c.created_at FROM dataset_heads h
                              JOIN commits c ON c.dataset_uuid = h.dataset_uuid AND c.number = h.last_commit
                             WHERE h.dataset_uuid = d.id),
           'generations', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'dataset_version', v.id, 'storage_location', v.storage_location,
                          'config_hash', v.config_hash, 'created_at', v.created_at,
                          'last_commit', (SELECT c.number FROM commits c
                                           WHERE c.dataset_uuid = v.dataset_uuid AND c.dataset_version = v.id
                                           ORDER BY c.number DESC LIMIT 1),
                          'current', EXISTS (
                              SELECT FROM dag_current_versions a
                                JOIN dag_version_datasets s ON s.dag_version_id = a.dag_version_id
                               WHERE a.org_id = d.org_id AND a.dag_name = d.producer_dag_name
                                 AND s.dataset_uuid = d.id AND s.dataset_version = v.id),
                          'partitions', p.partitions, 'rows', p.row_count, 'bytes', p.bytes,
                          'ranges', coalesce((
                              SELECT jsonb_agg(jsonb_build_array(lower(r.span), upper(r.span) - 1) ORDER BY r.span)
                                FROM unnest(p.ranges) AS r (span)), '[]'))
                          ORDER BY v.created_at DESC, v.id)
                 FROM dataset_versions v
                 CROSS JOIN LATERAL (
                     SELECT count(*) AS partitions, sum(row_count)::bigint AS row_count, sum(bytes)::bigint AS bytes,
                            range_agg(block_range) FILTER (WHERE block_range IS NOT NULL) AS ranges
                       FROM partition_versions
                      WHERE dataset_version = v.id AND valid_to IS NULL) p
                WHERE v.dataset_uuid = d.id AND v.org_id = d.org_id AND v.block_range IS NULL), '[]'),
           'lineage', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'column', l.output_column, 'input_dataset_uuid', l.input_dataset_uuid,
                          'input', coalesce(i.name, i.producer_dag_name || coalesce('.' || i.producer_job_name, '')),
                          'input_column', l.input_column)
                          ORDER BY l.output_column, i.name, i.producer_job_name, l.input_column)
                 FROM dag_current_versions a
                 JOIN jobs j ON j.dag_version_id = a.dag_version_id
                 JOIN column_lineage l ON l.job_id = j.id AND l.output_dataset_uuid = d.id
                 JOIN datasets_seen($1, $2, $3) i ON i.id = l.input_dataset_uuid
                WHERE a.org_id = d.org_id AND a.dag_name = d.producer_dag_name), '[]'),
           'commits', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'commit', c.number, 'dataset_version', c.dataset_version, 'task_id', c.task_id,
                          'attempt', c.attempt, 'scope', c.scope, 'rows', c.row_count, 'bytes', c.bytes,
                          'committed_at', c.created_at) ORDER BY c.number DESC)
                 FROM (SELECT * FROM commits WHERE dataset_uuid = d.id AND org_id = d.org_id
                        ORDER BY number DESC LIMIT $6) c), '[]'),
           'dead_batches', (SELECT count(*) FROM buffer_publishes
                             WHERE org_id = d.org_id AND dataset_uuid = d.id AND status = 'Dead'),
           'newest_dead_batches', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'publish_id', b.id, 'dataset_uuid', b.dataset_uuid, 'dataset', d.name,
                          'dag', d.producer_dag_name, 'task_id', b.task_id, 'attempt', b.attempt,
                          'batch_uri', coalesce(b.repaired_uri, b.batch_uri), 'content_type', b.content_type,
                          'line', b.error_line, 'reason', b.error_message, 'replays', b.replays,
                          'published_at', b.created_at, 'died_at', b.settled_at) ORDER BY b.id DESC)
                 FROM (SELECT * FROM buffer_publishes
                        WHERE org_id = d.org_id AND dataset_uuid = d.id AND status = 'Dead'
                        ORDER BY id DESC LIMIT $6) b), '[]'),
           'published_ranges', (SELECT count(*) FROM dataset_versions v
                                 WHERE v.dataset_uuid = d.id AND v.org_id = d.org_id AND v.block_range IS NOT NULL),
           'newest_published_ranges', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'dataset_version', r.id, 'generation', r.generation, 'start', r.range_start,
                          'end', r.range_end, 'storage_location', r.storage_location, 'storage_glob', r.storage_glob,
                          'config_hash', r.config_hash, 'published_at', r.created_at)
                          ORDER BY r.created_at DESC, r.range_start)
                 FROM (SELECT * FROM dataset_versions
                        WHERE dataset_uuid = d.id AND org_id = d.org_id AND block_range IS NOT NULL
                        ORDER BY created_at DESC, range_start LIMIT $6) r), '[]')
       )::text
  FROM datasets_seen($1, $2, $3) d
 WHERE d.id = $4::uuid OR d.name = $5::text;
