-- name: list_versions
-- The versions of a DAG, the newest first, and which one is active.
SELECT v.id AS dag_version_id, v.yaml_hash, v.id = c.dag_version_id IS TRUE AS active, v.created_at,
       coalesce(u.email, u.external_id) AS deployed_by
  FROM dag_versions v
  LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
  LEFT JOIN users u ON u.org_id = v.org_id AND u.id = v.deployed_by
 WHERE v.org_id = $1 AND v.dag_name = $2
 ORDER BY v.created_at DESC, v.id DESC;
