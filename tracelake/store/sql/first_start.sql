-- name: ensure_org
-- Inserts the first organisation of a Lite system, or returns the one that exists.
INSERT INTO orgs (name, slug)
VALUES ('Default', 'default')
ON CONFLICT (slug) DO UPDATE SET slug = excluded.slug
RETURNING id;

-- name: ensure_admin
-- Inserts its first user; one that exists is left as it is.
INSERT INTO users (org_id, external_id, email, role)
VALUES (%s, %s, %s, 'admin')
ON CONFLICT (external_id) DO NOTHING;

-- name: ensure_worker_token
-- Inserts the hash of the token that this machine's trusted processes use.
INSERT INTO worker_tokens (name, token_hash)
VALUES (%s, %s)
ON CONFLICT (token_hash) DO NOTHING;
