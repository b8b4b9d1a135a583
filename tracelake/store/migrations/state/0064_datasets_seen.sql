-- Which datasets exist to a user is decided in one place. One without a name is not published: a part of a pipeline, which
-- its writers and admins see and readers do not.

CREATE FUNCTION datasets_seen(of_org uuid, by_user uuid, with_role text) RETURNS SETOF datasets
LANGUAGE sql STABLE AS $$
SELECT d.*
  FROM datasets d
 WHERE d.org_id = of_org
   AND CASE d.visibility
       WHEN 'org' THEN true
       WHEN 'internal' THEN with_role IN ('writer', 'admin')
       -- The user's roles are read once, not for each dataset.
       WHEN 'roles' THEN with_role = 'admin' OR d.read_roles && ARRAY(
           SELECT 'role:' || r.slug
             FROM org_role_memberships m
             JOIN org_roles r ON r.id = m.role_id
            WHERE m.org_id = of_org AND m.user_id = by_user)
       END
$$;
COMMENT ON FUNCTION datasets_seen IS
    'The datasets of an organisation that exist to a user with this role: published ones that are open to all or shared with a role of the user (an admin has all), and, for writers and admins, those that are not published.';
