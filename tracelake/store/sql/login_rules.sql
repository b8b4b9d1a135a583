-- name: list_unknown
-- Of a rule's organisation and roles: whether there is the organisation, and the roles that it does not have.
SELECT o.id IS NOT NULL AS org_known,
       ARRAY(SELECT w.slug FROM unnest($2::text[]) AS w (slug)
              WHERE NOT EXISTS (SELECT FROM org_roles r WHERE r.org_id = o.id AND r.slug = w.slug)
              ORDER BY w.slug) AS unknown_roles
  FROM (VALUES ($1::text)) AS rule (org)
  LEFT JOIN orgs o ON o.slug = rule.org;

-- name: lock_org
-- Serializes with the changes of an organisation's users and roles by its admins.
SELECT id FROM orgs WHERE slug = $1 FOR NO KEY UPDATE;

-- name: add_user
-- Inserts a user with roles of the organisation; none if a role is unknown, or if the subject or one that resembles it
-- is or was a user of any organisation: whom an admin removed is not added again.
WITH wanted AS (
    SELECT r.org_id, r.id FROM org_roles r JOIN orgs o ON o.id = r.org_id WHERE o.slug = $1 AND r.slug = ANY ($6::text[])
), added AS (
    INSERT INTO users (org_id, external_id, subject_key, email, role)
    SELECT o.id, $2, $3, $4, $5::text::platform_role
      FROM orgs o
     WHERE o.slug = $1
       AND (SELECT count(*) FROM wanted) = cardinality($6::text[])
       AND NOT EXISTS (SELECT FROM users u WHERE u.external_id = $2 OR u.subject_key = $3)
    ON CONFLICT DO NOTHING
    RETURNING org_id, id
), members AS (
    INSERT INTO org_role_memberships (org_id, role_id, user_id)
    SELECT a.org_id, w.id, a.id FROM added a CROSS JOIN wanted w
)
SELECT id FROM added;
