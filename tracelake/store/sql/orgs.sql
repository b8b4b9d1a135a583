-- name: list_orgs
-- Every organisation, with the number of its users and the subjects of its admins.
SELECT o.id, o.slug AS org, o.name,
       (SELECT count(*) FROM users u WHERE u.org_id = o.id AND u.removed_at IS NULL) AS users,
       ARRAY(SELECT u.external_id FROM users u
              WHERE u.org_id = o.id AND u.role = 'admin' AND u.removed_at IS NULL ORDER BY u.external_id) AS admins,
       o.created_at
  FROM orgs o
 WHERE $1::text IS NULL OR o.slug = $1
 ORDER BY o.slug;

-- name: lock_orgs
-- Serializes the creation of organisations, so that their names can be compared.
SELECT pg_advisory_xact_lock(hashtextextended('trace.create_org', 0));

-- name: create_org
-- Inserts an organisation.
INSERT INTO orgs (name, slug) VALUES ($1, $2) RETURNING id;
