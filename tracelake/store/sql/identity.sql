-- name: find_user
-- A user by the subject of a verified token, unless it is an invitation yet. Role and organisation are read from here, never from a request.
SELECT u.id, u.org_id, o.slug AS org_slug, u.email, u.role, u.platform_admin,
       NULL::uuid AS token_id
  FROM users u
  JOIN orgs o ON o.id = u.org_id
 WHERE u.external_id = $1 AND u.removed_at IS NULL AND u.invited_until IS NULL;

-- name: accept_invitation
-- Makes the invited subject a user from now on, if the invitation still holds: whether it does; NULL if there is none.
WITH invited AS (
    SELECT id, invited_until > now() AS holds
      FROM users
     WHERE external_id = $1 AND removed_at IS NULL AND invited_until IS NOT NULL
       FOR UPDATE
), accepted AS (
    UPDATE users u SET invited_until = NULL FROM invited i WHERE u.id = i.id AND i.holds
)
SELECT holds FROM invited;

-- name: find_user_of_token
-- The user of a personal access token that holds now, with no more than the token's role.
SELECT u.id, u.org_id, o.slug AS org_slug, u.email, least(u.role, t.role) AS role, u.platform_admin,
       t.id AS token_id
  FROM user_tokens t
  JOIN users u ON u.id = t.user_id
  JOIN orgs o ON o.id = u.org_id
 WHERE t.id = $1 AND t.revoked_at IS NULL AND t.expires_at > now() AND u.removed_at IS NULL;
