-- Staging tables.

-- name: left
-- Returns the staging tables; the name of each contains its creation time.
SELECT c.relname
  FROM pg_class c
 WHERE c.relnamespace = 'staging'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^s_[0-9]{10}_[0-9a-f]{16}$'
   AND to_timestamp(substr(c.relname, 3, 10)::bigint) < now() - %(age)s::interval;

-- name: now
-- Returns the server's clock, in seconds.
SELECT extract(epoch FROM now())::bigint;
