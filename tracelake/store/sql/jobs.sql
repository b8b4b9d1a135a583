-- name: load_job
-- A job with the generations it writes: immutable, since it belongs to one DAG version; so it may be cached for ever.
SELECT j.id, j.org_id, j.dag_name, j.name, j.dag_version_id, j.runtime, j.operator, j.activation::text,
       j.config::text, j.config_hash, j.source::text, j.bootstrap::text, j.update_strategy::text, j.unique_key,
       j.udf_bundle_id, j.udf_handler, b.name AS bundle_name, b.sha256 AS bundle_sha256, b.kind::text AS bundle_kind,
       b.size_bytes AS bundle_size_bytes, b.location AS bundle_location, j.secrets, j.timeout_seconds, j.heartbeat_interval_seconds, j.heartbeat_timeout_seconds,
       j.retry_backoff_seconds, j.retry_backoff_max_seconds, j.max_platform_failures, j.max_concurrency,
       (SELECT jsonb_agg(jsonb_build_object(
            'dataset_uuid', o.dataset_uuid, 'dataset_version', v.id, 'storage_location', v.storage_location,
            'output_index', o.n - 1, 'kind', coalesce(d.storage ->> 'kind', 'parquet'))
            ORDER BY o.n)
          FROM unnest(j.output_datasets) WITH ORDINALITY AS o (dataset_uuid, n)
          JOIN datasets d ON d.id = o.dataset_uuid
          JOIN dag_version_datasets s ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = o.dataset_uuid
          JOIN dataset_versions v ON v.id = s.dataset_version)::text AS outputs
  FROM jobs j LEFT JOIN udf_bundles b ON b.id = j.udf_bundle_id
 WHERE j.id = $1;
