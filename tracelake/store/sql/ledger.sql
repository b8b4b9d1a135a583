-- name: list_entries
-- A page of the ledger of a dataset: up to $3 commits after $2 and up to $4, each with the partitions that it set, what its attempt read
-- and its code.
SELECT jsonb_build_object(
           'org_id', c.org_id, 'dataset_uuid', c.dataset_uuid, 'commit', c.number, 'dataset_version', c.dataset_version,
           'task_id', c.task_id, 'attempt', c.attempt, 'scope', c.scope, 'rows', c.row_count, 'bytes', c.bytes,
           'schema_hash', c.schema_hash, 'committed_at', c.created_at, 'previous_hash', encode(c.previous_hash, 'hex'),
           'files_hash', encode(c.files_hash, 'hex'), 'inputs_hash', encode(c.inputs_hash, 'hex'),
           'code_hash', encode(c.code_hash, 'hex'), 'hash', encode(c.hash, 'hex'),
           'partitions', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'key', p.partition_key, 'start', lower(p.block_range), 'end', upper(p.block_range) - 1,
                          'location', p.location, 'rows', p.row_count, 'bytes', p.bytes, 'files', p.files,
                          'replaced', p.valid_to IS NOT NULL,
                          'files_removed_at', p.files_removed_at) ORDER BY p.partition_key)
                 FROM partition_versions p
                WHERE p.dataset_uuid = c.dataset_uuid AND p.valid_from = c.number), '[]'),
           'inputs', CASE WHEN EXISTS (SELECT FROM task_attempts a WHERE a.task_id = c.task_id AND a.attempt = c.attempt)
               THEN coalesce((
                   SELECT jsonb_agg(jsonb_build_object(
                              'dataset_uuid', i.input_dataset_uuid, 'dataset_version', i.input_dataset_version,
                              'partition', i.input_partition_key, 'commit', i.input_commit))
                     FROM task_inputs i
                    WHERE i.task_id = c.task_id AND i.attempt = c.attempt), '[]') END,
           'code', (SELECT jsonb_build_object('config_hash', j.config_hash, 'bundle_sha256', b.sha256)
                      FROM tasks t
                      JOIN jobs j ON j.id = t.job_id
                      LEFT JOIN udf_bundles b ON b.id = j.udf_bundle_id
                     WHERE t.id = c.task_id),
           'generation_removed_at', (
               SELECT max(r.removed_at) FROM removed_generations r
                WHERE r.dataset_version = c.dataset_version AND r.up_to_commit >= c.number))::text AS entry
  FROM commits c
 WHERE c.dataset_uuid = $1 AND c.number > $2 AND c.number <= $4
 ORDER BY c.number
 LIMIT $3;

-- name: find_ends
-- The last commit of a dataset with its hash, and the hash of the last commit up to $2.
SELECT h.last_commit, encode(h.last_hash, 'hex') AS last_hash,
       (SELECT encode(c.hash, 'hex') FROM commits c
         WHERE c.dataset_uuid = $1 AND c.number <= $2 ORDER BY c.number DESC LIMIT 1) AS before_hash
  FROM dataset_heads h
 WHERE h.dataset_uuid = $1;
