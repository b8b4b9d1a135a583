-- name: find_hooks
-- The webhook sources of the active versions by organisation ($1), DAG ($2) and job ($3), in the order of the arguments.
SELECT j.org_id, j.dag_name, j.name AS job_name, j.operator, j.source
  FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS a (slug, dag_name, job_name, n)
  LEFT JOIN orgs o ON o.slug = a.slug
  LEFT JOIN dag_current_versions c ON c.org_id = o.id AND c.dag_name = a.dag_name
  LEFT JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = a.job_name AND j.source ->> 'kind' = 'webhook'
 ORDER BY a.n;

-- name: list_active_hooks
-- The webhook sources of all active versions.
SELECT j.org_id, o.slug AS org, j.dag_name AS dag, j.name AS job, j.source
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
  JOIN orgs o ON o.id = j.org_id
 WHERE j.source ->> 'kind' = 'webhook'
 ORDER BY o.slug, j.dag_name, j.name;

-- name: lock_orgs
-- Locks these organisations against activations until the transaction ends, so that what is fired is of the current
-- version.
SELECT pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || o.org_id, 0))
  FROM (SELECT DISTINCT u.org_id FROM unnest($1::uuid[]) AS u (org_id) ORDER BY 1) o;

-- name: accept_deliveries
-- Stores deliveries, each once, in their order, and says for each whether it was new; no row for one whose source is no
-- longer as it was verified against ($4, $5). Those of sources that are not paused fire: a task of the source ($10), or an
-- event for each output of it, with the entries of the outbox.
WITH given AS MATERIALIZED (
    SELECT g.*, g.text::jsonb AS body, j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.dag_version_id,
           j.output_datasets, uuidv7() AS id,
           EXISTS (SELECT FROM pauses p
                    WHERE p.job_id = j.id AND p.reason IN ('manual', 'failure') AND p.until IS NULL) AS held,
           CASE WHEN g.works THEN uuidv7() END AS task_id
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[], $5::text[], $6::text[], $7::text[], $8::int[],
                  $9::int[], $10::boolean[])
               WITH ORDINALITY AS g (org_id, dag_name, name, source, operator, delivery_key, text, size_bytes,
                                     kept_seconds, works, n)
      JOIN dag_current_versions c ON c.org_id = g.org_id AND c.dag_name = g.dag_name
      JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = g.name
                 AND j.source = g.source AND j.operator = g.operator
), stored AS (
    INSERT INTO source_deliveries (id, org_id, dag_name, job_name, job_id, delivery_key, body, size_bytes, held, task_id,
                                   expires_at)
    SELECT id, org_id, dag_name, name, job_id, delivery_key, body, size_bytes, held, CASE WHEN NOT held THEN task_id END,
           now() + make_interval(secs => kept_seconds)
      FROM given ORDER BY job_id, delivery_key -- as every batch does: no two wait for each other
    ON CONFLICT ON CONSTRAINT source_deliveries_once DO NOTHING
    RETURNING id, number, task_id
), fired AS (
    SELECT g.*, s.number FROM given g JOIN stored s ON s.id = g.id WHERE NOT g.held
), created AS (
    INSERT INTO tasks (id, org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, input_versions, woken_at)
    SELECT task_id, org_id, job_id, priority, max_attempts, timeout_seconds, 'delivery:' || id,
           fire_of('webhook', NULL, id, body, NULL),
           CASE WHEN max_concurrency IS NULL AND NOT held_by_pressure(job_id) THEN now() END
      FROM fired WHERE works
     ORDER BY number
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
), emitted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value, payload)
    SELECT f.org_id, 'webhook', 'cursor', f.id, o.id, served.dataset_version, 'cursor:' || f.number, f.number, f.body
      FROM fired f
      CROSS JOIN LATERAL unnest(f.output_datasets) AS o (id)
      JOIN dag_version_datasets served ON served.dag_version_id = f.dag_version_id AND served.dataset_uuid = o.id
     WHERE NOT f.works
     ORDER BY f.number
    RETURNING id, org_id, dataset_uuid
), routes AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM emitted
)
SELECT g.n::int - 1 AS place, g.id, s.task_id, s.id IS NOT NULL AS is_new, g.held
  FROM given g LEFT JOIN stored s ON s.id = g.id;

-- name: find_deliveries
-- The deliveries with these keys of these sources: what a repeated one is answered with.
SELECT a.n::int - 1 AS place, d.id, d.task_id, false AS is_new, d.held
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS a (org_id, dag_name, job_name, key, n)
  JOIN source_deliveries d
    ON d.org_id = a.org_id AND d.dag_name = a.dag_name AND d.job_name = a.job_name AND d.delivery_key = a.key;

-- name: release_held
-- Fires deliveries to a source ($1: its job; $2: whether a fire is a task) that were held while it was paused, in their
-- order, at most $3.
WITH released AS MATERIALIZED (
    SELECT d.id, d.number, d.body, j.id AS job_id, j.org_id, j.priority, j.max_attempts, j.timeout_seconds,
           j.max_concurrency, j.dag_version_id, j.output_datasets, CASE WHEN $2 THEN uuidv7() END AS task_id
      FROM jobs j
      JOIN source_deliveries d ON d.org_id = j.org_id AND d.dag_name = j.dag_name AND d.job_name = j.name AND d.held
     WHERE j.id = $1
     ORDER BY d.number
     LIMIT $3
       FOR UPDATE OF d
), marked AS (
    UPDATE source_deliveries d SET held = false, task_id = r.task_id, job_id = r.job_id
      FROM released r WHERE d.id = r.id
), created AS (
    INSERT INTO tasks (id, org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, input_versions, woken_at)
    SELECT task_id, org_id, job_id, priority, max_attempts, timeout_seconds, 'delivery:' || id,
           fire_of('webhook', NULL, id, body, NULL),
           CASE WHEN max_concurrency IS NULL AND NOT held_by_pressure(job_id) THEN now() END
      FROM released WHERE $2
     ORDER BY number
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
), emitted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value, payload)
    SELECT r.org_id, 'webhook', 'cursor', r.id, o.id, served.dataset_version, 'cursor:' || r.number, r.number, r.body
      FROM released r
      CROSS JOIN LATERAL unnest(r.output_datasets) AS o (id)
      JOIN dag_version_datasets served ON served.dag_version_id = r.dag_version_id AND served.dataset_uuid = o.id
     WHERE NOT $2
     ORDER BY r.number
    RETURNING id, org_id, dataset_uuid
), routes AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM emitted
)
SELECT count(*) FROM released;

-- name: prune_bodies
-- Clears bodies of deliveries that arrived longer ago than $1 and are not held, at most $2.
WITH old AS (
    SELECT id FROM source_deliveries
     WHERE body IS NOT NULL AND received_at < now() - $1::interval AND NOT held
     ORDER BY received_at LIMIT $2
), cleared AS (
    UPDATE source_deliveries d SET body = NULL FROM old o WHERE d.id = o.id RETURNING d.id
)
SELECT count(*) FROM cleared;

-- name: prune_keys
-- Deletes deliveries whose key may be deleted and that arrived longer ago than $1, at most $2.
WITH old AS (
    SELECT id FROM source_deliveries
     WHERE expires_at < now() AND received_at < now() - $1::interval AND NOT held
     ORDER BY expires_at LIMIT $2
), deleted AS (
    DELETE FROM source_deliveries d USING old o WHERE d.id = o.id RETURNING d.id
)
SELECT count(*) FROM deleted;
