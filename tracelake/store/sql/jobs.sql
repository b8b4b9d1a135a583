-- name: load_job
-- A job as JSON, with its bundle and the generations that it writes. It never changes, so it may be cached for ever. $2: the
-- handler of bundles whose job names none.
SELECT jsonb_build_object(
           'id', j.id, 'org_id', j.org_id, 'dag_name', j.dag_name, 'name', j.name, 'dag_version_id', j.dag_version_id,
           'runtime', j.runtime, 'operator', j.operator, 'activation', j.activation, 'config', j.config,
           'config_hash', j.config_hash, 'source', j.source, 'bootstrap', j.bootstrap,
           'update_strategy', j.update_strategy, 'unique_key', j.unique_key, 'secrets', j.secrets,
           'timeout_seconds', j.timeout_seconds, 'heartbeat_interval_seconds', j.heartbeat_interval_seconds,
           'heartbeat_timeout_seconds', j.heartbeat_timeout_seconds, 'retry_backoff_seconds', j.retry_backoff_seconds,
           'retry_backoff_max_seconds', j.retry_backoff_max_seconds, 'max_platform_failures', j.max_platform_failures,
           'max_concurrency', j.max_concurrency,
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
