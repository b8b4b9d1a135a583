-- name: list_written_tables
-- Tables of data Postgres, one of which every transaction changes that writes there, in the order of their names.
SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('trace_meta', 'alerts') ORDER BY 1, 2;

-- name: describe_state
-- The time of the snapshot, and how often the database was restored before.
SELECT now(), restore_epoch();

-- name: list_migrations
-- The migrations that a database has, in order.
SELECT id FROM trace_migrations.applied ORDER BY id;

-- name: list_objects
-- Every object that the state refers to, its checksum if that is known, and whether it must exist: files of partitions,
-- their markers, bundles, and batches that were published and not deleted.
WITH files AS (
    SELECT p.location, f ->> 'name' AS name, f ->> 'sha256' AS sha256
      FROM partition_versions p, jsonb_array_elements(p.files) AS f
     WHERE p.files_removed_at IS NULL AND p.location LIKE 's3://%'
)
SELECT DISTINCT location || name AS name, sha256, true AS required FROM files
 UNION ALL
SELECT DISTINCT location || '_SUCCESS', NULL, false FROM files
 UNION ALL
SELECT location, sha256, true FROM udf_bundles WHERE status = 'Ready'
 UNION ALL
SELECT DISTINCT uri, NULL, false
  FROM buffer_publishes b, unnest(ARRAY[b.batch_uri, b.repaired_uri]) AS uri
 WHERE b.removed_at IS NULL AND uri IS NOT NULL;
