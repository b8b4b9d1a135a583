-- name: find_user
-- A user by the subject of a verified token. Role and organisation come from here, never from a request.
SELECT u.id, u.org_id, o.slug AS org_slug, u.email, u.role
  FROM users u
  JOIN orgs o ON o.id = u.org_id
 WHERE u.external_id = $1;

-- name: find_worker_token
-- A worker token by the hash of what was shown; expired and revoked ones do not exist.
SELECT token_hash
  FROM worker_tokens
 WHERE token_hash = $1
   AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > now());
