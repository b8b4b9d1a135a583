-- name: lock_org
-- Serializes changes of an organisation's users, roles and access; rows that refer to it can still be inserted.
SELECT id FROM orgs WHERE id = $1 FOR NO KEY UPDATE;

-- name: is_admin
-- Whether a user is an admin of the organisation now: the role may have been taken away while the call waited.
SELECT EXISTS (SELECT FROM users WHERE org_id = $1 AND id = $2 AND role = 'admin' AND removed_at IS NULL);

-- name: list_users
-- The users of an organisation by subject; with $2 only that user, with $3 only that subject.
SELECT u.id, u.external_id AS subject, u.email, u.role::text, u.platform_admin,
       ARRAY(SELECT r.slug FROM org_role_memberships m JOIN org_roles r ON r.id = m.role_id
              WHERE m.user_id = u.id ORDER BY r.slug) AS org_roles,
       u.created_at, u.invited_until
  FROM users u
 WHERE u.org_id = $1 AND u.removed_at IS NULL
   AND ($2::uuid IS NULL OR u.id = $2)
   AND ($3::text IS NULL OR u.external_id = $3)
 ORDER BY u.external_id;

-- name: remove_expired
-- Ends the invitation of a subject ($1: its key) that has expired, in any organisation: the subject is free again.
WITH gone AS (
    UPDATE users SET removed_at = now()
     WHERE subject_key = $1 AND removed_at IS NULL AND invited_until <= now()
    RETURNING id
)
DELETE FROM org_role_memberships WHERE user_id IN (SELECT id FROM gone);

-- name: add_user
-- Inserts a user; none if the subject, or one that resembles it, is a user of any organisation. With $6, the first call
-- must come within so many days.
INSERT INTO users (org_id, external_id, subject_key, email, role, invited_until)
VALUES ($1, $2, $3, $4, $5::text::platform_role, now() + make_interval(days => $6::int))
ON CONFLICT DO NOTHING
RETURNING id;

-- name: has_other_admin
-- Whether an organisation has an admin besides this user. One whose invitation may expire is none yet.
SELECT EXISTS (
    SELECT FROM users WHERE org_id = $1 AND id <> $2 AND role = 'admin' AND removed_at IS NULL AND invited_until IS NULL
);

-- name: set_role
-- Sets the role of a user.
UPDATE users SET role = $3::text::platform_role WHERE org_id = $1 AND id = $2 AND removed_at IS NULL;

-- name: remove_user
-- Takes all rights of a user: the row stays for what they have made, memberships and tokens go.
WITH gone AS (
    UPDATE users SET removed_at = now() WHERE org_id = $1 AND id = $2 AND removed_at IS NULL RETURNING id
), revoked AS (
    UPDATE user_tokens SET revoked_at = now() WHERE user_id IN (SELECT id FROM gone) AND revoked_at IS NULL
)
DELETE FROM org_role_memberships WHERE user_id IN (SELECT id FROM gone);
