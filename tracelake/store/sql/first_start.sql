-- name: ensure_org
-- The organisation that a new Lite system begins with.
INSERT INTO orgs (name, slug)
VALUES ('Default', 'default')
ON CONFLICT (slug) DO UPDATE SET slug = excluded.slug
RETURNING id;

-- name: ensure_admin
-- Its first user; what an administrator changed later stays.
INSERT INTO users (org_id, external_id, email, role)
VALUES (%s, %s, %s, 'admin')
ON CONFLICT (external_id) DO NOTHING;

-- name: ensure_worker_token
-- The token that this machine's trusted processes show; only its hash is kept.
INSERT INTO worker_tokens (name, token_hash)
VALUES (%s, %s)
ON CONFLICT (token_hash) DO NOTHING;
