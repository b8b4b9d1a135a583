-- name: find_use
-- Why a DAG ($1, $2) may not be deleted: it is active, a release builds it, jobs of other DAGs read its datasets, or there
-- never was one.
SELECT EXISTS (SELECT FROM dag_current_versions c WHERE c.org_id = $1 AND c.dag_name = $2) AS active,
       ARRAY(SELECT m.release_id FROM release_members m
              WHERE m.org_id = $1 AND m.dag_name = $2 AND m.builds ORDER BY 1) AS releases,
       ARRAY(SELECT DISTINCT j.dag_name
               FROM datasets d
               JOIN job_inputs i ON i.dataset_uuid = d.id
               JOIN jobs j ON j.id = i.job_id AND j.dag_name <> $2
               JOIN running_versions r ON r.dag_version_id = j.dag_version_id
              WHERE d.org_id = $1 AND d.producer_dag_name = $2 ORDER BY 1) AS readers,
       EXISTS (SELECT FROM dag_versions v WHERE v.org_id = $1 AND v.dag_name = $2) AS existed;

-- name: measure
-- What deleting a DAG ($1, $2) removes: versions, jobs, generations of files with their partitions and bytes; and the
-- datasets whose rows are in tables, which stay.
WITH versions AS (
    SELECT v.id FROM known_versions v WHERE v.org_id = $1 AND v.dag_name = $2
), generations AS (
    SELECT g.id, d.id AS dataset_uuid, g.storage_location,
           coalesce(d.name, b.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text) AS label
      FROM datasets d
      JOIN dataset_versions g ON g.dataset_uuid = d.id AND g.generation IS NULL
      LEFT JOIN buffered_datasets b ON b.dataset_uuid = d.id
     WHERE d.org_id = $1 AND d.producer_dag_name = $2
), sizes AS (
    SELECT p.dataset_version, count(*) AS partitions, coalesce(sum(p.bytes), 0) AS bytes
      FROM generations g JOIN partition_versions p ON p.dataset_version = g.id
     GROUP BY 1
)
SELECT (SELECT count(*) FROM versions) AS versions,
       (SELECT count(*) FROM jobs j JOIN versions v ON v.id = j.dag_version_id) AS jobs,
       count(*) AS generations, coalesce(sum(s.partitions), 0)::bigint AS partitions, coalesce(sum(s.bytes), 0)::bigint AS bytes,
       ARRAY(SELECT DISTINCT label FROM generations WHERE storage_location NOT LIKE 's3://%' ORDER BY 1) AS tables
  FROM sizes s;

-- name: mark
-- Marks every version of a DAG ($1, $2) as deleted by $3, and its generations of files for removal at once.
WITH deleted AS (
    INSERT INTO deleted_versions (dag_version_id, org_id, deleted_by)
    SELECT v.id, v.org_id, $3 FROM known_versions v WHERE v.org_id = $1 AND v.dag_name = $2 ORDER BY v.id
    ON CONFLICT DO NOTHING
)
UPDATE dataset_versions g SET left_at = '-infinity'
  FROM datasets d
 WHERE d.org_id = $1 AND d.producer_dag_name = $2 AND g.dataset_uuid = d.id AND g.generation IS NULL
   AND EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = g.id);

-- name: restore_version
-- A version that is deployed again is not deleted any more.
DELETE FROM deleted_versions WHERE dag_version_id = $1;
