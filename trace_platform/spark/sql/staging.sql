-- Staging tables and what is known of the table they are merged into.

-- name: columns
-- Columns of a table and their types as Postgres writes them.
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
  FROM pg_attribute a
 WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum;

-- name: left
-- Staging tables by name; the name says when each was made.
SELECT c.relname
  FROM pg_class c
 WHERE c.relnamespace = 'staging'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^s_[0-9]{10}_[0-9a-f]{16}$'
   AND to_timestamp(substr(c.relname, 3, 10)::bigint) < now() - %(age)s::interval;

-- name: now
-- The server's clock, in seconds.
SELECT extract(epoch FROM now())::bigint;
