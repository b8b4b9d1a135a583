-- Work items of the delivery process, in data Postgres. A channel belongs to an organisation.

-- name: take
-- Leases up to $1 items that are due to $2 for $3 seconds: the oldest first, at most $4 in progress per channel, including
-- those that this process has in progress already ($5 organisation, $6 channel, $7 how many).
WITH busy AS (
    SELECT * FROM unnest($5::uuid[], $6::text[], $7::integer[]) AS b (org_id, channel, in_progress)
), due AS (
    SELECT d.id, d.org_id, d.channel, d.due_at
      FROM alerts.deliveries d
     WHERE d.status = 'Pending' AND d.due_at <= now()
       AND NOT EXISTS (
           SELECT FROM busy b WHERE b.org_id = d.org_id AND b.channel = d.channel AND b.in_progress >= $4::integer)
     ORDER BY d.due_at
     LIMIT 1000
), ranked AS (
    SELECT d.id, coalesce(b.in_progress, 0) + row_number() OVER (PARTITION BY d.org_id, d.channel ORDER BY d.due_at, d.id) AS n
      FROM due d LEFT JOIN busy b ON b.org_id = d.org_id AND b.channel = d.channel
), mine AS (
    SELECT d.id
      FROM alerts.deliveries d JOIN ranked r ON r.id = d.id
     WHERE r.n <= $4::integer AND d.status = 'Pending' AND d.due_at <= now()
     ORDER BY d.due_at
     LIMIT $1
       FOR UPDATE OF d SKIP LOCKED
)
UPDATE alerts.deliveries t
   SET lease_token = $2, due_at = now() + make_interval(secs => $3), attempts = t.attempts + 1
  FROM mine
 WHERE t.id = mine.id
RETURNING t.id, t.org_id, t.alert_definition_id, t.alert_name, t.channel, t.event::text, t.attempts, t.at_any_age,
          extract(epoch FROM now() - t.event_time)::double precision AS age_seconds,
          extract(epoch FROM now() - t.created_at)::double precision AS waited_seconds;

-- name: next_due
-- In how many seconds the next item is due; NULL: none is pending.
SELECT extract(epoch FROM min(due_at) - now())::double precision FROM alerts.deliveries WHERE status = 'Pending';

-- name: settle
-- Ends an item, if the caller holds its lease.
UPDATE alerts.deliveries
   SET status = $3::text::alerts.delivery_status, last_error = coalesce($4, last_error), lease_token = NULL,
       settled_at = now()
 WHERE id = $1 AND lease_token = $2 AND status = 'Pending'
RETURNING id;

-- name: put_off
-- Postpones an item by $3 seconds; unless the attempt counts ($5), it is subtracted again.
UPDATE alerts.deliveries
   SET due_at = now() + make_interval(secs => $3), last_error = coalesce($4, last_error), lease_token = NULL,
       attempts = attempts - CASE WHEN $5::boolean THEN 0 ELSE 1 END
 WHERE id = $1 AND lease_token = $2 AND status = 'Pending'
RETURNING id;

-- name: list_deliveries
-- A page of an organisation's items, the newest first.
SELECT d.id, d.alert_name AS alert, d.alert_definition_id, d.dedupe_key, d.channel, d.severity, d.status::text,
       d.attempts, d.last_error, d.event_time, d.created_at, d.settled_at,
       CASE WHEN d.status = 'Pending' THEN d.due_at END AS due_at
  FROM alerts.deliveries d
 WHERE d.org_id = $1
   AND ($2::text IS NULL OR d.status = $2::text::alerts.delivery_status)
   AND ($3::text IS NULL OR d.alert_name = $3)
   AND ($4::text IS NULL OR d.channel = $4)
   AND ($5::uuid IS NULL
        OR (d.created_at, d.id) < (SELECT b.created_at, b.id FROM alerts.deliveries b WHERE b.org_id = $1 AND b.id = $5))
 ORDER BY d.created_at DESC, d.id DESC
 LIMIT $6;

-- name: status_of
-- The status of an item.
SELECT status::text FROM alerts.deliveries WHERE org_id = $1 AND id = $2;

-- name: retry
-- Makes an item pending again that ended without being sent, however old it is.
UPDATE alerts.deliveries
   SET status = 'Pending', attempts = 0, due_at = now(), settled_at = NULL, at_any_age = true
 WHERE org_id = $1 AND id = $2 AND status IN ('Failed', 'Stale')
RETURNING id;

-- name: prune
-- Deletes items that ended longer ago than they are kept ($1), the oldest first, up to $2; returns how many.
SELECT alerts.prune_deliveries($1::interval, $2::integer);

-- name: wake
-- Notifies the delivery process that an item is due.
SELECT pg_notify($1, '');
