-- name: published
-- The public keys by which a capability may be verified now.
SELECT public_jwk::text AS jwk
  FROM signing_keys
 WHERE purpose = 'task'
   AND status <> 'Retired'
   AND (verify_until IS NULL OR verify_until > now())
 ORDER BY created_at, kid;

-- name: record
-- Publishes keys that were not known. A statement of its own, so that created_at is when they could be seen: a
-- transaction whose client stalls would show them later than it says.
INSERT INTO signing_keys (kid, purpose, public_jwk, created_at)
SELECT kid, 'task', jwk::jsonb, statement_timestamp()
  FROM unnest($1::text[], $2::text[]) AS held (kid, jwk)
    ON CONFLICT (kid) DO NOTHING;

-- name: lock
-- One replica at a time moves keys on. Should it stall, the server ends its transaction long before anything relies on
-- the times written in it.
SELECT set_config('idle_in_transaction_session_timeout', '30s', true),
       pg_advisory_xact_lock(hashtextextended('trace signing_keys', 0));

-- name: retire
-- Takes keys out of use whose last token has expired.
UPDATE signing_keys
   SET status = 'Retired'
 WHERE purpose = 'task'
   AND status = 'Retiring'
   AND verify_until <= statement_timestamp();

-- name: forget
-- A key that was taken away ($1: those that are there) before it ever signed must not stay published. Only when it is
-- older than the overlap ($2): a younger one may have come after the caller looked.
DELETE FROM signing_keys
 WHERE purpose = 'task'
   AND status = 'Pending'
   AND kid <> ALL ($1::text[])
   AND created_at <= statement_timestamp() - $2::interval;

-- name: next_to_sign
-- The oldest waiting key among those held ($1) that was published a whole overlap ($2) ago. While no key signs at all
-- (a first start, a revocation) it need not wait: whom a verifier that fetched just now turns away can come again.
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
-- The signing key only verifies from now on, until its last token has expired ($1 after this).
UPDATE signing_keys
   SET status = 'Retiring',
       active_until = greatest(active_from, statement_timestamp()),
       verify_until = greatest(active_from, statement_timestamp()) + $1::interval
 WHERE purpose = 'task'
   AND status = 'Active';

-- name: begin_signing
-- The next key signs.
UPDATE signing_keys
   SET status = 'Active',
       active_from = statement_timestamp()
 WHERE kid = $1
   AND purpose = 'task'
   AND status = 'Pending';

-- name: plan
-- What the holder of these keys ($1) is to do with them; $2 is how long a key may sign.
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

-- name: revoke
-- Ends a key at once, whatever it was doing; the tokens it signed end with it.
UPDATE signing_keys
   SET status = 'Retired',
       active_from = coalesce(active_from, statement_timestamp()),
       active_until = coalesce(active_until, greatest(active_from, statement_timestamp())),
       verify_until = greatest(active_from, active_until, statement_timestamp())
 WHERE kid = $1
   AND purpose = 'task'
   AND status <> 'Retired';

-- name: now
-- Seconds since 1970 on the one clock that counts.
SELECT extract(epoch FROM clock_timestamp())::float8;
