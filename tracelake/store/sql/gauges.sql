-- name: queued
-- Depth and age of every job's queue.
SELECT j.org_id::text AS org, j.dag_name AS dag, j.name AS job, sum(q.depth)::float8 AS depth,
       greatest(extract(epoch FROM now() - min(q.oldest)), 0)::float8 AS oldest
  FROM (SELECT job_id, count(*) AS depth, min(queued_at) AS oldest
          FROM tasks WHERE status = 'Queued' GROUP BY job_id) q
  JOIN jobs j ON j.id = q.job_id
 GROUP BY j.org_id, j.dag_name, j.name;

-- name: in_flight
-- Tasks by operator and runtime: woken and not claimed yet, running, and waiting for a slot. Always-on sources are left out.
SELECT j.org_id::text AS org, j.operator, j.runtime, s.state, sum(s.tasks)::float8 AS tasks
  FROM (SELECT job_id, CASE WHEN status = 'Running' THEN 'running' ELSE 'woken' END AS state, count(*) AS tasks
          FROM tasks WHERE status IN ('Queued', 'Running') AND woken_at IS NOT NULL GROUP BY 1, 2
        UNION ALL
        SELECT job_id, 'waiting', count(*) FROM tasks WHERE status = 'Queued' AND woken_at IS NULL GROUP BY 1) s
  JOIN jobs j ON j.id = s.job_id
 WHERE j.source ->> 'kind' IS DISTINCT FROM 'always_on'
 GROUP BY 1, 2, 3, 4;

-- name: outbox_pending
-- Outbox entries that are not done, and how long the oldest has been due; entries in process count until they are done.
SELECT k.kind::text, coalesce(p.depth, 0)::float8 AS depth,
       greatest(extract(epoch FROM now() - p.oldest), 0)::float8 AS oldest
  FROM unnest(enum_range(NULL::outbox_kind)) AS k (kind)
  LEFT JOIN (
      SELECT kind, count(*) AS depth, min(available_at) AS oldest
        FROM (SELECT kind, available_at FROM outbox WHERE status = 'Pending'
              UNION ALL SELECT kind, available_at FROM outbox WHERE status = 'Processing') outstanding
       GROUP BY kind) p ON p.kind = k.kind;

-- name: outbox_dead
-- Outbox entries that have failed for good.
SELECT org_id::text AS org, kind::text, count(*)::float8 AS dead FROM outbox WHERE status = 'Failed' GROUP BY 1, 2;

-- name: lags
-- How late lease expiry and retries are: the oldest lease past its end, the oldest retry past its time.
SELECT greatest(extract(epoch FROM now() - (
           SELECT min(lease_expires_at) FROM tasks WHERE status = 'Running')), 0)::float8 AS lease,
       greatest(extract(epoch FROM now() - (
           SELECT min(next_retry_at) FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL)), 0)::float8 AS retry;

-- name: batches_dead
-- Batches that the sink gave up.
SELECT org_id::text AS org, count(*)::float8 AS dead FROM buffer_publishes WHERE status = 'Dead' GROUP BY 1;

-- name: sources
-- Always-on sources by state.
SELECT org_id::text AS org, state::text, count(*)::float8 AS count FROM sources GROUP BY 1, 2;

-- name: orgs
-- The organisations, each with its name in paths.
SELECT id::text AS org, slug AS name FROM orgs;

-- name: org_limits
-- How much each organisation may use, where that is limited: by its own limit, or else by default.
SELECT o.id::text AS org, n.name AS limit, org_limit(o.id, n.name)::float8 AS most
  FROM orgs o CROSS JOIN (SELECT DISTINCT name FROM org_limits) n
 WHERE org_limit(o.id, n.name) IS NOT NULL;

-- name: org_storage
-- What organisations with a limit of object_bytes stored when they were last measured.
SELECT org_id::text AS org, bytes::float8 AS bytes FROM org_storage;

-- name: paused
-- Jobs that get no new tasks, by reason.
SELECT DISTINCT j.org_id::text AS org, j.dag_name AS dag, j.name AS job, p.reason::text
  FROM paused_jobs p
  JOIN jobs j ON j.id = p.job_id;

-- name: held
-- What waits for paused jobs.
SELECT j.org_id::text AS org, j.dag_name AS dag, j.name AS job, sum(h.held)::float8 AS held
  FROM (SELECT job_id, count(*) AS held FROM held_events GROUP BY job_id) h
  JOIN jobs j ON j.id = h.job_id
 GROUP BY j.org_id, j.dag_name, j.name;
