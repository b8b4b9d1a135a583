-- name: take_entries
-- Due rows of the kinds that act on the outside, and those whose taker is gone (S7): ours until the time runs out.
WITH pending AS (
    SELECT id FROM outbox
     WHERE status = 'Pending' AND kind IN ('enqueue_task', 'publish_buffer', 'prepare_table', 'notify_failure')
       AND available_at <= now()
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), stranded AS (
    SELECT id FROM outbox
     WHERE status = 'Processing' AND taken_until <= now()
     ORDER BY taken_until
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id FROM pending UNION ALL SELECT id FROM stranded
)
UPDATE outbox o
   SET status = 'Processing', taken_by = $2, taken_until = now() + $3::interval, attempts = o.attempts + 1
  FROM due
 WHERE o.id = due.id
RETURNING o.id, o.org_id, o.kind::text, o.payload::text;

-- name: takers
-- Which replicas of a machine have taken entries.
SELECT DISTINCT taken_by FROM outbox WHERE status = 'Processing' AND starts_with(taken_by, $1);

-- name: let_go
-- What these replicas had taken, who are no more, is there to be taken again.
WITH free AS (
    UPDATE outbox SET taken_until = now() WHERE (status = 'Processing') IS TRUE AND taken_by = ANY ($1::text[]) RETURNING id
)
SELECT count(*) FROM free;

-- name: mark_entries_done
-- They were dispatched, unless another replica has taken them since. Not waited for on disk: twice is harmless.
UPDATE outbox SET status = 'Done', processed_at = now(), taken_by = NULL, taken_until = NULL
  FROM set_config('synchronous_commit', 'off', true)
 WHERE id = ANY ($1::bigint[]) AND (status = 'Processing') IS TRUE AND taken_by = $2;

-- name: postpone_entries
-- They could not be dispatched now: again after a while, or given up.
UPDATE outbox o
   SET status = CASE WHEN p.final THEN 'Failed' ELSE 'Pending' END::outbox_status,
       available_at = now() + p.delay, taken_by = NULL, taken_until = NULL, last_error = p.error,
       processed_at = CASE WHEN p.final THEN now() END
  FROM unnest($1::bigint[], $3::interval[], $4::text[], $5::boolean[]) AS p (id, delay, error, final)
 WHERE o.id = p.id AND (o.status = 'Processing') IS TRUE AND o.taken_by = $2;

-- name: put_off_routing
-- An entry to route that Postgres refused: again after a while, or given up, so that it blocks no others.
UPDATE outbox
   SET attempts = attempts + 1,
       available_at = now() + $2::interval,
       last_error = $3,
       status = CASE WHEN $4 THEN 'Failed' ELSE 'Pending' END::outbox_status,
       processed_at = CASE WHEN $4 THEN now() END
 WHERE id = $1 AND status = 'Pending';

-- name: due_routing
-- The entries to route that are due, to be tried one by one when they fail together.
SELECT id, attempts FROM outbox
 WHERE status = 'Pending' AND kind = $1::outbox_kind AND available_at <= now()
 ORDER BY available_at, id
 LIMIT $2;

-- name: look
-- What there is to do besides routing events, of which there is seldom any; and how long until something becomes due
-- by itself: the loop sleeps so long unless it is woken.
SELECT EXISTS (SELECT FROM outbox WHERE status = 'Pending' AND kind = 'route_invalidation' AND available_at <= now())
           AS invalidations,
       EXISTS (SELECT FROM outbox
                WHERE status = 'Pending' AND kind IN ('enqueue_task', 'publish_buffer', 'prepare_table', 'notify_failure')
                  AND available_at <= now())
           OR EXISTS (SELECT FROM outbox WHERE status = 'Processing' AND taken_until <= now()) AS entries,
       EXISTS (SELECT FROM tasks WHERE status = 'Queued' AND woken_at IS NULL) AS waiting,
       extract(epoch FROM least(
           (SELECT min(available_at) FROM outbox WHERE status = 'Pending'),
           (SELECT min(taken_until) FROM outbox WHERE status = 'Processing')) - now())::float8 AS next_due;

-- name: buffer_messages
-- What goes onto the Buffer Queue for each accepted publish: a pointer, never rows.
SELECT id, org_id, dataset_uuid, jsonb_build_object(
           'kind', 'buffer_batch', 'publish_id', id, 'org_id', org_id, 'dataset_uuid', dataset_uuid,
           'dataset_version', dataset_version, 'batch_uri', batch_uri, 'content_type', content_type,
           'record_count', record_count, 'batch_size_bytes', batch_size_bytes,
           'producer', jsonb_build_object('task_id', task_id, 'attempt', attempt))::text AS message
  FROM buffer_publishes
 WHERE id = ANY ($1::uuid[]);

-- name: delete_done_entries
-- Of the next entries by id, those that were done long enough ago are deleted. Those that were given up stay, for users. `next`: where to go on; 0, from the front again, once none that follows can be old enough, since
-- ids rise with time. So what was not kept yet, or not for long enough, is seen at another round.
WITH seen AS (
    SELECT id, status, processed_at < now() - $2::interval AS is_old, created_at < now() - $2::interval AS may_be_old
      FROM outbox WHERE id > $1 ORDER BY id LIMIT $3
), deleted AS (
    DELETE FROM outbox o USING seen s WHERE o.id = s.id AND s.is_old AND s.status = 'Done' AND o.status = 'Done'
    RETURNING o.id
)
SELECT (SELECT count(*) FROM deleted) AS forgotten,
       (SELECT CASE WHEN count(*) = $3 AND bool_or(may_be_old) THEN max(id) ELSE 0 END FROM seen) AS next;
