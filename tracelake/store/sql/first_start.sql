-- name: ensure_org
-- Inserts the first organisation of a Lite system, or returns the one that exists.
INSERT INTO orgs (name, slug)
VALUES ('Default', 'default')
ON CONFLICT (slug) DO UPDATE SET slug = excluded.slug
RETURNING id;

-- name: ensure_admin
-- Inserts its first user, who may also create organisations; one that exists or was removed is left as it is.
INSERT INTO users (org_id, external_id, subject_key, email, role, platform_admin)
SELECT %s, f.subject, f.subject, %s, 'admin', true
  FROM (VALUES (%s)) AS f (subject)
 WHERE NOT EXISTS (SELECT FROM users u WHERE u.external_id = f.subject)
ON CONFLICT DO NOTHING;

-- name: ensure_worker_token
-- Inserts the hash of the token that this machine's trusted processes use.
INSERT INTO worker_tokens (name, token_hash)
VALUES (%s, %s)
ON CONFLICT (token_hash) DO NOTHING;
