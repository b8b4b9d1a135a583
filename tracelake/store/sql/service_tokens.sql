-- name: load_tokens
-- Every token that holds now, with what each listener receives of it; $1: tokens that were used since the last time.
WITH used AS (
    UPDATE service_tokens SET last_used_at = now()
     WHERE id = ANY ($1::uuid[]) AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
)
SELECT t.id, t.service::text, t.runtimes, h.listener, h.token_hash
  FROM service_tokens t
  JOIN service_token_hashes h ON h.token_id = t.id
 WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now());

-- name: revoke_expired
-- Revokes a token that has expired, so that its name is free.
UPDATE service_tokens SET revoked_at = now()
 WHERE service = $1::text::service_identity AND name = $2 AND revoked_at IS NULL AND expires_at <= now();

-- name: create_token
-- Inserts a token with its hashes; none if the service has one of this name. $4: days, or NULL for no end.
WITH made AS (
    INSERT INTO service_tokens (service, name, runtimes, expires_at)
    VALUES ($1::text::service_identity, $2, $3, now() + make_interval(days => $4))
    ON CONFLICT DO NOTHING
    RETURNING id
), hashed AS (
    INSERT INTO service_token_hashes (token_id, listener, token_hash)
    SELECT m.id, h.listener, h.token_hash FROM made m, unnest($5::text[], $6::bytea[]) AS h (listener, token_hash)
)
SELECT id FROM made;

-- name: list_tokens
-- The tokens that are not revoked; with $1 only that one.
SELECT t.id, t.service::text, t.name, coalesce(t.runtimes, '{}') AS runtimes, t.created_at, t.expires_at,
       coalesce(t.expires_at <= now(), false) AS expired, t.last_used_at
  FROM service_tokens t
 WHERE t.revoked_at IS NULL AND ($1::uuid IS NULL OR t.id = $1)
 ORDER BY t.service, t.name;

-- name: revoke_token
-- Revokes a token.
UPDATE service_tokens SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL RETURNING service::text, name;
