-- name: current_epoch
-- The epoch: how often the database was restored from a backup.
SELECT restore_epoch();

-- name: list_published
-- The public keys by which a capability may be verified now.
SELECT public_jwk AS jwk
  FROM signing_keys
 WHERE purpose = 'task'
   AND status <> 'Retired'
   AND (verify_until IS NULL OR verify_until > now())
 ORDER BY created_at, kid;

-- name: insert_keys
-- Publishes keys that are new. A statement of its own, so that created_at is when they became visible: a transaction
-- whose client stalls would publish them later than that.
INSERT INTO signing_keys (kid, purpose, public_jwk, created_at)
SELECT kid, 'task', jwk::jsonb, statement_timestamp()
  FROM unnest($1::text[], $2::text[]) AS held (kid, jwk)
    ON CONFLICT (kid) DO NOTHING;

-- name: lock_keys
-- Serializes the changes of keys. If the replica stalls, the server ends its transaction long before the times that it
-- wrote matter.
SELECT set_config('idle_in_transaction_session_timeout', '30s', true),
       pg_advisory_xact_lock(hashtextextended('trace signing_keys', 0));

-- name: retire_expired
-- Retires keys whose last token has expired.
UPDATE signing_keys
   SET status = 'Retired'
 WHERE purpose = 'task'
   AND status = 'Retiring'
   AND verify_until <= statement_timestamp();

-- name: delete_unused
-- Deletes keys that were removed ($1: those that exist) before they signed. Only those older than the overlap ($2): a
-- younger one may have been added after the caller listed the keys.
DELETE FROM signing_keys
 WHERE purpose = 'task'
   AND status = 'Pending'
   AND kid <> ALL ($1::text[])
   AND created_at <= statement_timestamp() - $2::interval;

-- name: find_next
-- The oldest pending key among those held ($1) that was published at least the overlap ($2) ago. While no key signs (a
-- first start, a revocation) it need not wait: a caller that a verifier refuses meanwhile retries.
SELECT kid
  FROM signing_keys
 WHERE purpose = 'task'
   AND status = 'Pending'
   AND kid = ANY ($1::text[])
   AND (created_at <= statement_timestamp() - $2::interval
        OR NOT EXISTS (SELECT FROM signing_keys WHERE purpose = 'task' AND status = 'Active'))
 ORDER BY created_at, kid
 LIMIT 1;

-- name: end_signing
-- The signing key only verifies from now on, until its last token has expired ($1 later).
UPDATE signing_keys
   SET status = 'Retiring',
       active_until = greatest(active_from, statement_timestamp()),
       verify_until = greatest(active_from, statement_timestamp()) + $1::interval
 WHERE purpose = 'task'
   AND status = 'Active';

-- name: begin_signing
-- Makes a pending key the signing key.
UPDATE signing_keys
   SET status = 'Active',
       active_from = statement_timestamp()
 WHERE kid = $1
   AND purpose = 'task'
   AND status = 'Pending';

-- name: plan
-- What the holder of these keys ($1) must do with them; $2 is how long a key may sign.
SELECT (SELECT kid FROM signing_keys WHERE purpose = 'task' AND status = 'Active') AS signing,
       ARRAY(SELECT kid FROM signing_keys
              WHERE purpose = 'task' AND status = 'Retired' AND kid = ANY ($1::text[])) AS retired,
       ARRAY(SELECT kid FROM signing_keys
              WHERE purpose <> 'task' AND kid = ANY ($1::text[])) AS foreign_keys,
       NOT EXISTS (
           SELECT FROM signing_keys
            WHERE purpose = 'task'
              AND kid = ANY ($1::text[])
              AND (status = 'Pending'
                   OR (status = 'Active' AND active_from > statement_timestamp() - $2::interval))) AS rotation_due;

-- name: revoke_key
-- Retires a key at once; the tokens that it signed are invalid from then on.
UPDATE signing_keys
   SET status = 'Retired',
       active_from = coalesce(active_from, statement_timestamp()),
       active_until = coalesce(active_until, greatest(active_from, statement_timestamp())),
       verify_until = greatest(active_from, active_until, statement_timestamp())
 WHERE kid = $1
   AND purpose = 'task'
   AND status <> 'Retired';

-- name: now
-- Seconds since 1970 on the clock of Postgres.
SELECT extract(epoch FROM clock_timestamp())::float8;
