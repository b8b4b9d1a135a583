-- name: load_job
-- A job as JSON, with its bundle and the generations that it writes. It never changes, so it may be cached for ever. $2: the
-- handler of bundles whose job names none.
SELECT jsonb_build_object(
           'id', j.id, 'org_id', j.org_id, 'dag_name', j.dag_name, 'name', j.name, 'runtime', j.runtime,
           'operator', j.operator, 'config', j.config, 'secrets', j.secrets, 'timeout_seconds', j.timeout_seconds,
           'heartbeat_interval_seconds', j.heartbeat_interval_seconds,
           'heartbeat_timeout_seconds', j.heartbeat_timeout_seconds,
           'bundle', (SELECT jsonb_build_object(
                          'name', b.name, 'sha256', b.sha256, 'kind', b.kind, 'size_bytes', b.size_bytes,
                          'location', b.location, 'handler', coalesce(j.udf_handler, $2))
                        FROM udf_bundles b WHERE b.id = j.udf_bundle_id),
           'outputs', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'dataset_uuid', o.dataset_uuid, 'dataset_version', v.id, 'storage_location', v.storage_location,
                          'output_index', o.n - 1, 'kind', coalesce(d.storage ->> 'kind', 'parquet')) ORDER BY o.n)
                 FROM unnest(j.output_datasets) WITH ORDINALITY AS o (dataset_uuid, n)
                 JOIN datasets d ON d.id = o.dataset_uuid
                 JOIN dag_version_datasets s ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = o.dataset_uuid
                 JOIN dataset_versions v ON v.id = s.dataset_version), '[]')
       )::text
  FROM jobs j
 WHERE j.id = $1;
