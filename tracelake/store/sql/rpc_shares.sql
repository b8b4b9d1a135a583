-- name: lock_pools
-- One request at a time for each of these pools of nodes, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('rpc pool ' || p.name, 0)) FROM unnest($1::text[]) AS p (name);

-- name: list_shares
-- The shares of these pools that have not expired.
SELECT pool, worker, request, in_flight, rate, wanted, limit_in_flight, limit_rate
  FROM rpc_shares
 WHERE pool = ANY ($1::text[]) AND expires_at > now()
 ORDER BY pool, worker;

-- name: turn
-- A number that rises by one in every time of $1 seconds.
SELECT floor(extract(epoch FROM now()) / $1::float8)::bigint;

-- name: store_shares
-- Stores the shares of a worker ($1) for $3 seconds, and deletes those of these pools that have expired.
WITH expired AS (
    DELETE FROM rpc_shares WHERE pool = ANY ($4::text[]) AND expires_at <= now() AND worker <> $1
)
INSERT INTO rpc_shares AS s (worker, request, expires_at, pool, in_flight, rate, used, wanted, limit_in_flight, limit_rate)
SELECT $1, $2, now() + make_interval(secs => $3), n.*
  FROM unnest($4::text[], $5::integer[], $6::float8[], $7::integer[], $8::integer[], $9::integer[], $10::float8[])
           AS n (pool, in_flight, rate, used, wanted, limit_in_flight, limit_rate)
ON CONFLICT (pool, worker) DO UPDATE
   SET request = excluded.request, expires_at = excluded.expires_at, in_flight = excluded.in_flight, rate = excluded.rate,
       used = excluded.used, wanted = excluded.wanted, limit_in_flight = excluded.limit_in_flight, limit_rate = excluded.limit_rate;

-- name: return_shares
-- A worker that stops returns its shares.
DELETE FROM rpc_shares WHERE worker = $1;

-- name: list_pools
-- What workers have leased of each pool of nodes, and its limits.
SELECT pool, count(*) AS workers, sum(used) AS used, sum(in_flight) AS leased, min(limit_in_flight) AS "limit",
       sum(rate) AS leased_rate, min(limit_rate) AS limit_rate
  FROM rpc_shares
 WHERE expires_at > now()
 GROUP BY pool
 ORDER BY pool;
