-- name: revoke_expired
-- Revokes a token of a user that has expired, so that its name is free.
UPDATE user_tokens SET revoked_at = now()
 WHERE user_id = $1 AND name = $2 AND revoked_at IS NULL AND expires_at <= now();

-- name: create_token
-- Inserts a token of a user that holds for $6 days; none if the user has one of this name.
INSERT INTO user_tokens (org_id, user_id, name, token_hash, role, expires_at)
VALUES ($1, $2, $3, $4, $5::text::platform_role, now() + make_interval(days => $6))
ON CONFLICT DO NOTHING
RETURNING id;

-- name: list_tokens
-- The tokens of a user that are not revoked; with $2 only that one.
SELECT t.name, t.role::text, t.created_at, t.expires_at, t.expires_at <= now() AS expired, t.last_used_at
  FROM user_tokens t
 WHERE t.user_id = $1 AND t.revoked_at IS NULL AND ($2::text IS NULL OR t.name = $2)
 ORDER BY t.name;

-- name: revoke_token
-- Revokes a token of a user.
UPDATE user_tokens SET revoked_at = now() WHERE user_id = $1 AND name = $2 AND revoked_at IS NULL RETURNING id;

-- name: find_token
-- A token by its hash, if it holds, with the hash to compare.
SELECT t.id, t.token_hash
  FROM user_tokens t
  JOIN users u ON u.id = t.user_id AND u.removed_at IS NULL
 WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND t.expires_at > now();

-- name: mark_used
-- Stores that a token is in use, at most once a minute.
UPDATE user_tokens SET last_used_at = now()
 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute');
