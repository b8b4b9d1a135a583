-- name: overtake
-- Another version of these DAGs ($2) becomes active, or none. Releases that build one of them, but for $3, are abandoned;
-- one that serves is on standby.
WITH touched AS (
    SELECT m.release_id, bool_or(m.builds) AS builds, min(m.dag_name) AS dag_name
      FROM release_members m JOIN releases r ON r.id = m.release_id
     WHERE m.org_id = $1 AND m.dag_name = ANY ($2::text[]) AND m.release_id IS DISTINCT FROM $3
       AND r.state IN ('Building', 'Ready', 'Serving')
     GROUP BY m.release_id
), changed AS (
    UPDATE releases r
       SET state = CASE WHEN t.builds THEN 'Abandoned' ELSE 'Standby' END::release_state,
           ended_at = CASE WHEN t.builds THEN now() END,
           message = CASE WHEN t.builds THEN
               format('the active version of DAG %s has changed since it was planned', t.dag_name) END
      FROM touched t
     WHERE r.id = t.release_id
)
UPDATE release_members m SET builds = false FROM touched t WHERE m.release_id = t.release_id AND m.builds;

-- name: list_active_versions
-- The active version of every DAG of an organisation.
SELECT v.dag_name, v.id, v.yaml, v.yaml_hash
  FROM dag_current_versions c
  JOIN dag_versions v ON v.id = c.dag_version_id
 WHERE c.org_id = $1
 ORDER BY v.dag_name;

-- name: list_readers
-- The jobs of active versions that read datasets of other DAGs.
SELECT DISTINCT i.dataset_uuid, j.dag_name, j.name AS job_name
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
  JOIN job_inputs i ON i.job_id = j.id
  JOIN datasets d ON d.id = i.dataset_uuid AND d.producer_dag_name <> j.dag_name
 WHERE c.org_id = $1
 ORDER BY 1, 2, 3;

-- name: list_pointers
-- The generations that active versions of these DAGs serve, and what they are named.
SELECT d.producer_dag_name AS dag_name, s.dataset_uuid, s.dataset_version, d.name, d.producer_job_name AS job_name,
       d.producer_output_index AS output_index
  FROM dag_current_versions c
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
  JOIN datasets d ON d.id = s.dataset_uuid
 WHERE c.org_id = $1 AND c.dag_name = ANY ($2::text[]);

-- name: measure_generations
-- How much these generations ($1) hold now, whether the columns of all of it have hashes, the first $2 of their blocks, and of
-- how many ranges these are.
SELECT m.dataset_version, m.partitions, m.rows, m.bytes, m.hashed, l.starts, l.stops, l.ranges
  FROM (SELECT p.dataset_version, count(*) AS partitions, coalesce(sum(p.row_count), 0)::bigint AS rows,
               coalesce(sum(p.bytes), 0)::bigint AS bytes, bool_and(p.column_hashes IS NOT NULL) AS hashed,
               range_agg(p.block_range) AS blocks
          FROM partition_versions p
         WHERE p.dataset_version = ANY ($1::uuid[]) AND p.valid_to IS NULL
         GROUP BY 1) m
 CROSS JOIN LATERAL (
     SELECT coalesce(array_agg(lower(r.blocks) ORDER BY r.n) FILTER (WHERE r.n <= $2), '{}') AS starts,
            coalesce(array_agg(upper(r.blocks) ORDER BY r.n) FILTER (WHERE r.n <= $2), '{}') AS stops, count(*) AS ranges
       FROM unnest(m.blocks) WITH ORDINALITY AS r (blocks, n)) l;

-- name: measure_built
-- The same of what is built again of each generation: of the blocks beside it ($3), and of partitions whose content is not known.
SELECT m.dataset_version, m.partitions, m.rows, m.bytes, m.hashed, l.starts, l.stops, l.ranges
  FROM (SELECT p.dataset_version, count(*) AS partitions, coalesce(sum(p.row_count), 0)::bigint AS rows,
               coalesce(sum(p.bytes), 0)::bigint AS bytes, bool_and(p.column_hashes IS NOT NULL) AS hashed,
               range_agg(p.block_range) AS blocks
          FROM unnest($1::uuid[], $3::text[]) AS a (dataset_version, blocks)
          JOIN partition_versions p ON p.dataset_version = a.dataset_version AND p.valid_to IS NULL
         WHERE p.content_hash IS NULL OR p.block_range && a.blocks::int8multirange
         GROUP BY 1) m
 CROSS JOIN LATERAL (
     SELECT coalesce(array_agg(lower(r.blocks) ORDER BY r.n) FILTER (WHERE r.n <= $2), '{}') AS starts,
            coalesce(array_agg(upper(r.blocks) ORDER BY r.n) FILTER (WHERE r.n <= $2), '{}') AS stops, count(*) AS ranges
       FROM unnest(m.blocks) WITH ORDINALITY AS r (blocks, n)) l;

-- name: find_listed_blocks
-- For each of these jobs ($1) and addresses beside it ($2): the blocks of its input in which one of its addresses may be, and
-- whether one may also be in partitions without blocks.
WITH edits AS (
    SELECT e.job_id, array_agg(e.address) AS addresses
      FROM unnest($1::uuid[], $2::bytea[]) AS e (job_id, address)
     GROUP BY 1
), found AS (
    SELECT e.job_id, range_agg(p.block_range) AS blocks, bool_or(p.block_range IS NULL) AS labels
      FROM edits e
      JOIN job_reads r ON r.job_id = e.job_id
      JOIN partition_versions p ON p.dataset_version = r.dataset_version AND p.valid_to IS NULL
     WHERE p.addresses IS NULL OR EXISTS (SELECT FROM unnest(e.addresses) AS a (address) WHERE may_hold(p.addresses, a.address))
     GROUP BY 1
)
SELECT f.job_id, lower(b.blocks) AS start, upper(b.blocks) AS stop, f.labels
  FROM found f
  LEFT JOIN unnest(f.blocks) AS b (blocks) ON true;

-- name: measure_jobs
-- How long the last tasks of each job of the active versions of these DAGs ran, and how many requests to chain nodes they
-- made, on average.
SELECT j.dag_name, j.name AS job_name, t.seconds, t.requests
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
  CROSS JOIN LATERAL (
      SELECT avg(extract(epoch FROM last.completed_at - last.started_at))::float8 AS seconds,
             avg(last.node_requests)::float8 AS requests
        FROM (SELECT completed_at, started_at, node_requests FROM tasks
               WHERE job_id = j.id AND status = 'Completed' ORDER BY id DESC LIMIT 100) last) t
 WHERE c.org_id = $1 AND c.dag_name = ANY ($2::text[]) AND t.seconds IS NOT NULL;

-- name: count_query_users
-- How many users have queried each of these datasets within 30 days.
SELECT q.dataset_uuid, count(DISTINCT a.user_id) AS users
  FROM query_audit a
  CROSS JOIN LATERAL unnest(a.datasets) AS q (dataset_uuid)
 WHERE a.org_id = $1 AND a.asked_at > now() - interval '30 days' AND a.user_id IS NOT NULL
   AND q.dataset_uuid = ANY ($2::uuid[])
 GROUP BY 1;

-- name: find_same
-- A release that is being built, or ready, by the same plan: the request was repeated.
SELECT id FROM releases
 WHERE org_id = $1 AND plan_hash = $2 AND when_ready = $3 AND state IN ('Building', 'Ready')
 LIMIT 1;

-- name: insert_release
-- Inserts a release that is being built.
INSERT INTO releases (id, org_id, plan_hash, when_ready, created_by) VALUES ($1, $2, $3, $4, $5);

-- name: insert_members
-- Inserts the versions of a release ($1, $2) and the active versions that they replace.
INSERT INTO release_members (release_id, org_id, dag_name, dag_version_id, former_version_id)
SELECT $1, $2, m.dag_name, m.dag_version_id, c.dag_version_id
  FROM unnest($3::text[], $4::uuid[]) AS m (dag_name, dag_version_id)
  LEFT JOIN dag_current_versions c ON c.org_id = $2 AND c.dag_name = m.dag_name;

-- name: replace_building
-- Abandons the releases that build one of these DAGs ($2): a newer one ($3) builds it.
WITH replaced AS (
    SELECT DISTINCT m.release_id FROM release_members m WHERE m.org_id = $1 AND m.dag_name = ANY ($2::text[]) AND m.builds
), abandoned AS (
    UPDATE releases r
       SET state = 'Abandoned', ended_at = now(), message = format('release %s replaced it', $3::uuid)
      FROM replaced o
     WHERE r.id = o.release_id
)
UPDATE release_members m SET builds = false FROM replaced o WHERE m.release_id = o.release_id;

-- name: request_build
-- The inputs of the jobs of a release ($1) are compared from now on. Jobs with effects outside their own datasets start
-- when the release is promoted, unless they replay.
INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
SELECT r.job_id, r.dataset_uuid, r.org_id
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id
  JOIN job_reads r ON r.job_id = j.id
 WHERE m.release_id = $1 AND r.takes_history AND writes_own_datasets(j.output_datasets)
 ORDER BY 1, 2
ON CONFLICT (job_id, dataset_uuid) DO UPDATE
   SET due_at = excluded.due_at, requested_at = excluded.requested_at, stage = excluded.stage,
       after_start = excluded.after_start, after_key = excluded.after_key, after_time = excluded.after_time,
       after_event = excluded.after_event, walked_at = NULL;

-- name: take_release
-- The release whose progress is due to be looked at, locked: how many tasks of its jobs have not ended, but for always-on
-- sources, which never do, and whether every input of them has been compared since.
SELECT r.id, r.org_id, r.state::text, r.when_ready,
       (SELECT count(*) FROM release_members m
          JOIN jobs j ON j.dag_version_id = m.dag_version_id
          JOIN tasks t ON t.job_id = j.id
         WHERE m.release_id = r.id AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
           AND (t.status IN ('Queued', 'Running') OR t.status = 'Failed' AND t.next_retry_at IS NOT NULL)) AS open_tasks,
       NOT EXISTS (
           SELECT FROM release_members m
             JOIN jobs j ON j.dag_version_id = m.dag_version_id
             JOIN catch_ups c ON c.job_id = j.id
            WHERE m.release_id = r.id AND c.walked_at IS NULL) AS was_compared
  FROM releases r
 WHERE (r.state = 'Building' OR r.state = 'Ready' AND r.when_ready) AND r.check_at <= now()
 ORDER BY r.check_at
 LIMIT 1
   FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: next_release
-- Seconds until the progress of a release is looked at.
SELECT extract(epoch FROM min(check_at) - now())::float8
  FROM releases WHERE state = 'Building' OR state = 'Ready' AND when_ready;

-- name: check_later
-- The progress of a release is looked at again after $2; $3: what keeps it from being ready.
UPDATE releases SET check_at = now() + $2::interval, message = $3 WHERE id = $1;

-- name: mark_ready
-- A release has built everything that its inputs hold.
UPDATE releases SET state = 'Ready', ready_at = coalesce(ready_at, now()), message = NULL WHERE id = $1 AND state = 'Building';

-- name: mark_not_promoted
-- Why a release that is ready was not promoted by itself. It waits for a user.
UPDATE releases SET when_ready = false, message = $2 WHERE id = $1;

-- name: list_release_reads
-- The inputs that the jobs of a release process while it is built.
SELECT r.job_id, r.job_name, r.dataset_uuid, r.dataset_version, r.makes_whole, r.takes_history,
       coalesce(d.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text) AS input, j.dag_name
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id
  JOIN job_reads r ON r.job_id = j.id
  JOIN datasets d ON d.id = r.dataset_uuid
 WHERE m.release_id = $1 AND r.takes_history AND writes_own_datasets(j.output_datasets)
 ORDER BY j.dag_name, r.job_name, input;

-- name: lock_release
-- A release of an organisation, locked, with its state.
SELECT r.state::text FROM releases r WHERE r.org_id = $1 AND r.id = $2 FOR NO KEY UPDATE;

-- name: list_members
-- The versions of a release, those that were active before, and those that are active now.
SELECT m.dag_name, m.dag_version_id, m.former_version_id, c.dag_version_id AS active
  FROM release_members m
  LEFT JOIN dag_current_versions c ON c.org_id = m.org_id AND c.dag_name = m.dag_name
 WHERE m.release_id = $1
 ORDER BY m.dag_name;

-- name: find_serving_group
-- The release that serves, and the other DAGs of it, if a DAG ($1, $2: organisation, name) is one of several in it and a
-- version ($3) is the one that it replaced.
SELECT m.release_id, ARRAY(SELECT o.dag_name FROM release_members o
                            WHERE o.release_id = m.release_id AND o.dag_name <> m.dag_name ORDER BY 1) AS others
  FROM release_members m
  JOIN releases r ON r.id = m.release_id AND r.state = 'Serving'
 WHERE m.org_id = $1 AND m.dag_name = $2 AND m.former_version_id = $3
   AND EXISTS (SELECT FROM release_members o WHERE o.release_id = m.release_id AND o.dag_name <> m.dag_name);

-- name: end_building
-- The versions of a release are no longer built beside the active ones.
UPDATE release_members SET builds = false WHERE release_id = $1;

-- name: mark_serving
-- A release serves; $2: what it was promoted in spite of.
UPDATE releases SET state = 'Serving', promoted_at = now(), message = $2 WHERE id = $1;

-- name: mark_standby
-- A release was rolled back; the one before it, whose versions are active again, serves.
WITH back AS (
    UPDATE releases r SET state = 'Serving'
     WHERE r.org_id = $2 AND r.state = 'Standby' AND r.id <> $1
       AND NOT EXISTS (
           SELECT FROM release_members m
             LEFT JOIN dag_current_versions c ON c.org_id = m.org_id AND c.dag_name = m.dag_name
            WHERE m.release_id = r.id AND c.dag_version_id IS DISTINCT FROM m.dag_version_id)
)
UPDATE releases SET state = 'Standby' WHERE id = $1;

-- name: mark_abandoned
-- A release was abandoned by a user.
UPDATE releases SET state = 'Abandoned', ended_at = now(), message = $2 WHERE id = $1;

-- name: mark_left
-- Generations of a release ($1) that no version serves or builds: they are removed after some time.
UPDATE dataset_versions v
   SET left_at = now()
  FROM release_members m
  JOIN dag_version_datasets s ON s.dag_version_id = m.dag_version_id
 WHERE m.release_id = $1 AND v.id = s.dataset_version AND v.left_at IS NULL
   AND NOT EXISTS (
       SELECT FROM dag_version_datasets o JOIN running_versions c ON c.dag_version_id = o.dag_version_id
        WHERE o.dataset_version = v.id);

-- name: retire_releases
-- Releases on standby whose generations have been removed cannot serve again as they were. How many.
WITH retired AS (
    UPDATE releases r SET state = 'Retired', ended_at = now()
     WHERE r.state = 'Standby'
       AND EXISTS (
           SELECT FROM release_members m
             JOIN dag_version_datasets s ON s.dag_version_id = m.dag_version_id
             JOIN removed_generations g ON g.dataset_version = s.dataset_version
            WHERE m.release_id = r.id AND g.removed_at > r.promoted_at)
    RETURNING 1
)
SELECT count(*) FROM retired;

-- name: list_releases
-- The newest releases of an organisation, or one of them ($2).
SELECT r.id, r.state::text, r.when_ready, r.created_at, r.ready_at, r.promoted_at, r.message,
       ARRAY(SELECT m.dag_name FROM release_members m WHERE m.release_id = r.id ORDER BY 1) AS dags,
       coalesce(u.email, u.external_id) AS created_by
  FROM releases r
  LEFT JOIN users u ON u.org_id = r.org_id AND u.id = r.created_by
 WHERE r.org_id = $1 AND ($2::uuid IS NULL OR r.id = $2)
 ORDER BY r.created_at DESC, r.id DESC
 LIMIT 100;

-- name: count_open_tasks
-- Tasks of the jobs of a release that have not ended, but for always-on sources.
SELECT count(*)
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
  JOIN tasks t ON t.job_id = j.id
 WHERE m.release_id = $1 AND m.builds
   AND (t.status IN ('Queued', 'Running') OR t.status = 'Failed' AND t.next_retry_at IS NOT NULL);

-- name: list_job_hashes
-- What decides the rows of each job of the active versions of these DAGs.
SELECT j.dag_name, j.name AS job_name, j.id AS job_id, j.config_hash, j.config, j.memo_hash, j.addresses, j.makes_whole
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE c.org_id = $1 AND c.dag_name = ANY ($2::text[]);

-- name: replay_fires
-- Replays to sources of a release ($1), at most $3, what fired them in the version before, where they write other
-- generations: a task for each task, an event for each event, each once. With $2 the other way round, for a rollback. Tasks
-- that have not ended are replayed with $4: the switch that follows cancels them. How many.
WITH pairs AS (
    SELECT org_id, CASE WHEN $2::boolean THEN former_version_id ELSE dag_version_id END AS target,
           CASE WHEN $2 THEN dag_version_id ELSE former_version_id END AS origin
      FROM release_members WHERE release_id = $1
), changed AS MATERIALIZED (
    SELECT j.id, j.org_id, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime, j.lineage_id, j.output_datasets,
           p.target, p.origin, old.lineage_id AS former
      FROM pairs p
      JOIN jobs j ON j.dag_version_id = p.target AND j.activation = 'source' AND j.source ->> 'kind' <> 'always_on'
      JOIN jobs old ON old.dag_version_id = p.origin AND old.name = j.name AND old.activation = 'source'
                   AND old.lineage_id <> j.lineage_id
     WHERE writes_own_datasets(j.output_datasets)
), fires AS (
    SELECT DISTINCT ON (c.id, f.work) c.*, f.work, t.id AS fired, t.partitions, t.input_versions
      FROM changed c
      JOIN jobs same ON same.lineage_id = c.former
      JOIN tasks t ON t.job_id = same.id AND t.input_versions ? 'fired'
                  AND (t.status = 'Completed' OR $4::boolean AND (t.status IN ('Queued', 'Running')
                                                                 OR t.status = 'Failed' AND t.next_retry_at IS NOT NULL))
      CROSS JOIN LATERAL (SELECT regexp_replace(t.dedupe_key, '^replayed:', '') AS work) f
     WHERE NOT EXISTS (SELECT FROM jobs mine JOIN tasks r ON r.job_id = mine.id
                        WHERE mine.lineage_id = c.lineage_id AND r.dedupe_key IN (f.work, 'replayed:' || f.work))
     ORDER BY c.id, f.work
     LIMIT $3
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, history, partitions,
                       input_versions, woken_at)
    SELECT org_id, id, 'bulk', max_attempts, timeout_seconds, 'replayed:' || work, true, partitions, input_versions,
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM fires
     ORDER BY fired -- ids rise: they are run in the order in which they were fired
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
     ORDER BY c.id
), emitted AS (
    -- Only recorded: the jobs behind the source catch up with them, in a release as after a switch.
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value, partition_key,
                        block_range, payload, history, disposition, audit_reason)
    SELECT e.org_id, e.origin, e.kind, e.producer_run_id, e.dataset_uuid, mine.dataset_version, e.scope, e.cursor_value,
           e.partition_key, e.block_range, e.payload, true, 'AuditOnly', 'replayed to another version of its source'
      FROM changed c
      JOIN dag_version_datasets mine ON mine.dag_version_id = c.target AND mine.dataset_uuid = ANY (c.output_datasets)
      JOIN dag_version_datasets theirs ON theirs.dag_version_id = c.origin AND theirs.dataset_uuid = mine.dataset_uuid
      JOIN events e ON e.dataset_uuid = mine.dataset_uuid AND e.dataset_version = theirs.dataset_version
                   AND e.origin NOT IN ('task', 'sink')
     WHERE NOT EXISTS (SELECT FROM events r
                        WHERE r.producer_run_id = e.producer_run_id AND r.dataset_uuid = e.dataset_uuid
                          AND r.dataset_version = mine.dataset_version AND r.scope = e.scope)
     ORDER BY e.created_at, e.id
     LIMIT $3
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT (SELECT count(*) FROM created) + (SELECT count(*) FROM emitted);

-- name: count_failed_fires
-- Tasks of sources of a release ($1) that failed for good: what they would have written is missing.
SELECT count(*)
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id AND j.activation = 'source'
  JOIN tasks t ON t.job_id = j.id AND t.status = 'Failed' AND t.next_retry_at IS NULL AND t.dedupe_key LIKE 'replayed:%'
 WHERE m.release_id = $1;

-- name: list_sources_behind
-- The last block, or cursor, that always-on sources of a release ($1) have announced, and those of the active versions, beside
-- which they run, had announced $2 ago: of those that have not come as far.
SELECT j.dag_name, j.name AS job_name, max(mine.place) AS reached, max(theirs.place) AS expected
  FROM release_members m
  JOIN jobs j ON j.dag_version_id = m.dag_version_id
  JOIN wanted_sources w ON w.job_id = j.id
  JOIN dag_version_datasets new ON new.dag_version_id = m.dag_version_id AND new.dataset_uuid = ANY (j.output_datasets)
  JOIN dag_version_datasets old ON old.dag_version_id = m.former_version_id AND old.dataset_uuid = new.dataset_uuid
  LEFT JOIN LATERAL (
      SELECT coalesce(upper(e.block_range) - 1, e.cursor_value) AS place FROM events e
       WHERE e.dataset_uuid = old.dataset_uuid AND e.dataset_version = old.dataset_version AND e.created_at < now() - $2::interval
       ORDER BY e.created_at DESC, e.id DESC LIMIT 1) theirs ON true
  LEFT JOIN LATERAL (
      SELECT coalesce(upper(e.block_range) - 1, e.cursor_value) AS place FROM events e
       WHERE e.dataset_uuid = new.dataset_uuid AND e.dataset_version = new.dataset_version
       ORDER BY e.created_at DESC, e.id DESC LIMIT 1) mine ON true
 WHERE m.release_id = $1
 GROUP BY j.dag_name, j.name
HAVING max(theirs.place) IS NOT NULL AND (max(mine.place) >= max(theirs.place)) IS NOT TRUE
 ORDER BY 1, 2;

-- name: invalidate_built
-- Tasks for invalidations of what jobs of a release ($1) have processed: no event reaches these jobs. As
-- `route_missed_invalidations` does when a version is activated. How many.
WITH missed AS (
    SELECT DISTINCT ON (v.id, j.id) v.*, j.id AS job_id, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime
      FROM release_members m
      JOIN jobs j ON j.dag_version_id = m.dag_version_id
      JOIN job_reads r ON r.job_id = j.id AND r.takes_history
      CROSS JOIN LATERAL (SELECT min(same.created_at) AS at FROM jobs same WHERE same.lineage_id = j.lineage_id) first
      JOIN data_invalidations v ON v.dataset_version = r.dataset_version AND v.created_at >= first.at
     WHERE m.release_id = $1 AND m.builds AND writes_own_datasets(j.output_datasets)
       AND EXISTS (SELECT FROM processed_inputs p WHERE p.lineage_id = j.lineage_id AND p.dataset_version = r.dataset_version)
       -- What the active version has too, it does.
       AND NOT EXISTS (SELECT FROM jobs active JOIN dag_current_versions c ON c.dag_version_id = active.dag_version_id
                        WHERE active.lineage_id = j.lineage_id AND active.org_id = j.org_id)
       AND NOT EXISTS (
           SELECT FROM data_invalidation_jobs s
             JOIN jobs same ON same.id = s.job_id AND same.lineage_id = j.lineage_id
            WHERE s.invalidation_id = v.id AND (s.processed_at IS NOT NULL OR s.job_id = j.id))
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, invalidation_id, history,
                       partitions, input_versions, woken_at)
    SELECT org_id, job_id, 'bulk', max_attempts, timeout_seconds,
           concat_ws(':', 'partition', dataset_uuid, dataset_version, partition_key, 'invalidation', id),
           id, true, ARRAY[partition_key],
           trigger_of(dataset_uuid, dataset_version, NULL, partition_key, block_range, follows_commit),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM missed
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM created
    ON CONFLICT DO NOTHING
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
     ORDER BY c.id
)
SELECT count(*) FROM created;
