-- name: set_secret
-- Stores or replaces a secret; true if it is new.
INSERT INTO org_secrets (org_id, kind, name, key_id, sealed, set_by)
SELECT $1, $2, $3, $4, $5, u.external_id FROM users u WHERE u.org_id = $1 AND u.id = $6
ON CONFLICT (org_id, kind, name) DO UPDATE
   SET key_id = excluded.key_id, sealed = excluded.sealed, set_by = excluded.set_by, set_at = now()
RETURNING xmax = 0;

-- name: list_secrets
-- The secrets of an organisation without their values, and which jobs of active versions name each; $2, $3: only one.
SELECT s.kind, s.name, s.key_id, s.set_by, s.set_at,
       ARRAY(SELECT j.dag_name || '.' || j.name
               FROM dag_current_versions c
               JOIN jobs j ON j.dag_version_id = c.dag_version_id
              WHERE c.org_id = s.org_id
                AND CASE s.kind
                        WHEN 'job' THEN s.name IN (SELECT lower(n) FROM unnest(j.secrets) AS n)
                        ELSE j.source ->> 'kind' = 'webhook' AND lower(j.source ->> 'secret') = s.name
                    END
              ORDER BY 1) AS used_by
  FROM org_secrets s
 WHERE s.org_id = $1 AND ($2::text IS NULL OR s.kind = $2) AND ($3::text IS NULL OR s.name = $3)
 ORDER BY s.kind, s.name;

-- name: remove_secret
-- Deletes a secret.
DELETE FROM org_secrets WHERE org_id = $1 AND kind = $2 AND name = $3;

-- name: find_secrets
-- The encrypted values of a kind ($2) for organisations ($1) and names ($3), pairwise; a NULL name: all of that kind.
SELECT s.org_id, s.name, s.key_id, s.sealed
  FROM (SELECT DISTINCT u.org_id, u.name FROM unnest($1::uuid[], $3::text[]) AS u (org_id, name)) a
  JOIN org_secrets s ON s.org_id = a.org_id AND s.kind = $2 AND (a.name IS NULL OR s.name = a.name);
