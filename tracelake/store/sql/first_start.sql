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

-- name: find_service_token
-- A token by its hash, and whether it holds.
SELECT t.id, t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())
  FROM service_tokens t
  JOIN service_token_hashes h ON h.token_id = t.id
 WHERE h.token_hash = %s;

-- name: set_runtimes
-- What a token of this machine may claim, by the settings of this start.
UPDATE service_tokens SET runtimes = %s WHERE id = %s;

-- name: insert_service_token
-- Inserts a token that this machine has made.
INSERT INTO service_tokens (service, name, runtimes)
VALUES (%s, %s, %s)
RETURNING id;

-- name: insert_service_token_hash
-- Inserts what a listener receives of it, as a hash.
INSERT INTO service_token_hashes (token_id, listener, token_hash)
VALUES (%s, %s, %s);
