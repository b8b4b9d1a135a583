-- name: list_roles
-- The roles of an organisation, with how many have each and the published datasets that are shared with it.
SELECT r.slug AS role, r.name,
       (SELECT count(*) FROM org_role_memberships m WHERE m.role_id = r.id) AS members,
       ARRAY(SELECT d.name FROM datasets d
              WHERE d.org_id = r.org_id AND d.name IS NOT NULL AND 'role:' || r.slug = ANY (d.read_roles)
              ORDER BY d.name) AS datasets,
       r.created_at
  FROM org_roles r
 WHERE r.org_id = $1 AND ($2::text IS NULL OR r.slug = $2)
 ORDER BY r.slug;

-- name: create_role
-- Inserts a role.
INSERT INTO org_roles (org_id, slug, name) VALUES ($1, $2, $3);

-- name: delete_role
-- Deletes a role and its memberships.
DELETE FROM org_roles WHERE org_id = $1 AND slug = $2;

-- name: list_members
-- The users who have a role, by subject.
SELECT u.id, u.external_id AS subject, u.email, m.created_at AS since
  FROM org_role_memberships m
  JOIN org_roles r ON r.id = m.role_id
  JOIN users u ON u.id = m.user_id
 WHERE r.org_id = $1 AND r.slug = $2
 ORDER BY u.external_id;

-- name: grant_role
-- Gives a user of the organisation a role; none if the user has it.
INSERT INTO org_role_memberships (org_id, role_id, user_id)
SELECT r.org_id, r.id, u.id
  FROM org_roles r
  JOIN users u ON u.org_id = r.org_id AND u.id = $3 AND u.removed_at IS NULL
 WHERE r.org_id = $1 AND r.slug = $2
ON CONFLICT DO NOTHING
RETURNING user_id;

-- name: revoke_role
-- Takes a role from a user; none if the user does not have it.
DELETE FROM org_role_memberships m
 USING org_roles r
 WHERE r.id = m.role_id AND r.org_id = $1 AND r.slug = $2 AND m.user_id = $3
RETURNING m.user_id;
