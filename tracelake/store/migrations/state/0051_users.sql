-- Users are managed by verbs: one can be removed, and subjects that differ only in case or in form are refused.

ALTER TABLE users
    ADD COLUMN platform_admin boolean NOT NULL DEFAULT false,
    ADD COLUMN subject_key text,
    ADD COLUMN removed_at timestamptz;
COMMENT ON COLUMN users.platform_admin IS 'May also create organisations.';
COMMENT ON COLUMN users.subject_key IS
    'The subject in Unicode form NFKC without case: two users never share it. NULL: inserted before it was compared.';
COMMENT ON COLUMN users.removed_at IS
    'When an admin removed the user, who has no rights since; the row stays, because other rows name their author.';

UPDATE users SET platform_admin = true WHERE external_id = 'local|admin' AND role = 'admin';
-- Where subjects resemble each other already, the oldest has the key and all of them stay.
UPDATE users u
   SET subject_key = k.key
  FROM (SELECT DISTINCT ON (lower(normalize(external_id, NFKC))) id, lower(normalize(external_id, NFKC)) AS key
          FROM users ORDER BY lower(normalize(external_id, NFKC)), created_at, id) k
 WHERE u.id = k.id;

-- A subject that was removed can be added again, also by another organisation.
ALTER TABLE users DROP CONSTRAINT users_external_id_once;
CREATE UNIQUE INDEX users_external_id_once ON users (external_id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX users_subject_key_once ON users (subject_key) WHERE removed_at IS NULL;
ALTER TABLE users ADD CONSTRAINT users_removed_has_no_platform CHECK (removed_at IS NULL OR NOT platform_admin);
