-- name: show_access
-- Who may read a dataset, and which admin decided it.
SELECT d.id AS dataset_uuid, d.name, d.visibility::text, d.read_roles, coalesce(u.email, u.external_id) AS set_by,
       CASE WHEN a.set_by IS NOT NULL THEN a.set_at END AS set_at
  FROM datasets d
  LEFT JOIN dataset_access a ON a.dataset_uuid = d.id AND a.name = d.name
  LEFT JOIN users u ON u.id = a.set_by
 WHERE d.org_id = $1 AND d.id = $2;

-- name: set_access
-- Sets who may read a published dataset, under this name and those that it had.
WITH kept AS (
    UPDATE dataset_access
       SET visibility = $3::text::dataset_visibility, read_roles = $4::text[], set_by = $5, set_at = now()
     WHERE org_id = $1 AND dataset_uuid = $2
)
UPDATE datasets
   SET visibility = $3::text::dataset_visibility, read_roles = $4::text[], updated_at = now()
 WHERE org_id = $1 AND id = $2;

-- name: forget_role
-- Removes a role from the access of all datasets; one that was shared with no other is left to admins.
WITH kept AS (
    UPDATE dataset_access SET read_roles = array_remove(read_roles, $2)
     WHERE org_id = $1 AND $2 = ANY (read_roles)
)
UPDATE datasets SET read_roles = array_remove(read_roles, $2), updated_at = now()
 WHERE org_id = $1 AND $2 = ANY (read_roles);

-- name: list_decided
-- Of datasets and the names under which they are to be published, the access that is decided already: that of the
-- dataset, else that of the name.
SELECT p.dataset_uuid, p.name, a.visibility::text, a.read_roles, a.set_by IS NOT NULL AS by_admin
  FROM unnest($2::uuid[], $3::text[]) AS p (dataset_uuid, name)
  CROSS JOIN LATERAL (
      SELECT k.visibility, k.read_roles, k.set_by
        FROM dataset_access k
       WHERE k.org_id = $1 AND (k.dataset_uuid = p.dataset_uuid OR k.name = p.name)
       ORDER BY k.dataset_uuid = p.dataset_uuid DESC, k.name = p.name DESC, k.set_at DESC
       LIMIT 1) a;
