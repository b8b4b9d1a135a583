-- name: find_user
-- A user by the subject of a verified token. Role and organisation are read from here, never from a request.
SELECT u.id, u.org_id, o.slug AS org_slug, u.email, u.role, u.platform_admin
  FROM users u
  JOIN orgs o ON o.id = u.org_id
 WHERE u.external_id = $1 AND u.removed_at IS NULL;

-- name: find_worker_token
-- A worker token by its hash, unless it has expired or was revoked.
SELECT token_hash
  FROM worker_tokens
 WHERE token_hash = $1
   AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > now());
