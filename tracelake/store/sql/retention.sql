-- name: delete_old_tasks
-- Of up to $3 tasks after $1, those are deleted that ended before $2 ago and that nothing needs: no commit, event, batch,
-- invalidation or source refers to them, and their key cannot come again. A key of a partition or a commit is kept for
-- ever. That of a cursor cannot come again when its event is deleted and the job has read further. Attempts before the
-- last one are deleted of every such task, once their files are swept, unless a commit is theirs.
WITH seen AS MATERIALIZED (
    SELECT t.id, t.attempt, t.created_at < now() - $2::interval AS may_be_old,
           coalesce(t.completed_at < now() - $2::interval AND t.next_retry_at IS NULL, false) AS is_old
      FROM tasks t WHERE t.id > $1 ORDER BY t.id LIMIT $3
), needless AS MATERIALIZED (
    SELECT t.id
      FROM seen s
      JOIN tasks t ON t.id = s.id
      JOIN jobs j ON j.id = t.job_id AND j.activation = 'reactive'
     WHERE s.is_old AND t.status IN ('Completed', 'Failed', 'Canceled')
       AND (t.dedupe_key IS NULL OR (
               t.dedupe_key LIKE 'cursor:%' AND (t.status = 'Completed' OR t.superseded_by IS NOT NULL) AND EXISTS (
               SELECT FROM processed_inputs c
                WHERE c.lineage_id = j.lineage_id AND c.dataset_version = (t.input_versions ->> 'dataset_version')::uuid
                  AND c.partition_key = processed_key(NULL, (t.input_versions ->> 'cursor')::bigint,
                                                      (t.input_versions ->> 'commit')::bigint)
                  AND c.cursor_value >= (t.input_versions ->> 'cursor')::bigint)))
       AND NOT EXISTS (SELECT FROM events e WHERE e.id = t.event_id)
       AND NOT EXISTS (SELECT FROM events e WHERE e.producer_run_id = t.id)
       AND NOT EXISTS (SELECT FROM commits c WHERE c.task_id = t.id)
       AND NOT EXISTS (SELECT FROM buffer_publishes p WHERE p.task_id = t.id)
       AND NOT EXISTS (SELECT FROM data_invalidations v WHERE v.producer_task_id = t.id)
       AND NOT EXISTS (SELECT FROM data_invalidation_jobs v WHERE v.task_id = t.id)
       AND NOT EXISTS (SELECT FROM sources r WHERE r.task_id = t.id)
       AND NOT EXISTS (SELECT FROM task_attempts a
                        WHERE a.task_id = t.id
                          AND a.started_at > coalesce((SELECT swept_until FROM orphan_file_marks), '-infinity'))
       FOR UPDATE OF t SKIP LOCKED
), former AS MATERIALIZED (
    SELECT h.task_id, h.attempt
      FROM seen s
      JOIN task_attempts h ON h.task_id = s.id AND h.attempt < s.attempt
      JOIN orphan_file_marks m ON h.started_at <= m.swept_until
     WHERE s.is_old AND s.id NOT IN (SELECT id FROM needless)
       AND NOT EXISTS (SELECT FROM commits c WHERE c.task_id = h.task_id AND c.attempt = h.attempt)
       AND NOT EXISTS (SELECT FROM buffer_publishes p WHERE p.task_id = h.task_id AND p.attempt = h.attempt)
), inputs AS (
    DELETE FROM task_inputs i USING former f WHERE i.task_id = f.task_id AND i.attempt = f.attempt
), attempts AS (
    DELETE FROM task_attempts a USING former f WHERE a.task_id = f.task_id AND a.attempt = f.attempt RETURNING 1
), deleted AS (
    DELETE FROM tasks t USING needless n WHERE t.id = n.id RETURNING 1
)
SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM attempts) AS deleted,
       (SELECT CASE WHEN count(*) = $3 AND bool_or(may_be_old)
                    THEN (array_agg(id ORDER BY id DESC))[1] END FROM seen) AS next;

-- name: delete_old_events
-- Deletes up to $3 events created from $1 to $2 that were routed or need not be, and whose commit is no longer current:
-- else the reconciler would send them again. Those that a version is built from stay (`versions/units.py`): of people,
-- schedules and webhooks; of partitions and batches that no file shows; the last cursor and the last update.
WITH old AS (
    SELECT e.id
      FROM events e
     WHERE e.created_at >= $1 AND e.created_at < $2 AND e.origin IN ('task', 'sink')
       AND (e.routed_at IS NOT NULL OR e.disposition = 'AuditOnly')
       AND NOT EXISTS (SELECT FROM held_events h WHERE h.event_id = e.id)
       AND NOT EXISTS (
           SELECT FROM commits c
             JOIN partition_versions p ON p.dataset_uuid = c.dataset_uuid AND p.valid_to IS NULL
                                      AND (p.valid_from = c.number OR p.content_since = c.number)
            WHERE c.task_id = e.producer_task_id AND c.dataset_uuid = e.dataset_uuid)
       AND (e.disposition = 'AuditOnly'
            OR (e.kind = 'partition' AND e.commit_number IS NOT NULL)
            OR (e.kind <> 'partition' AND e.commit_number IS NULL AND EXISTS (
                SELECT FROM events later
                 WHERE later.dataset_uuid = e.dataset_uuid AND later.dataset_version = e.dataset_version
                   AND later.kind = e.kind AND later.created_at > e.created_at AND later.disposition = 'Route'
                   AND later.cursor_value IS NOT DISTINCT FROM greatest(later.cursor_value, e.cursor_value))))
     LIMIT $3
), deleted AS (
    DELETE FROM events e USING old WHERE e.id = old.id RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: find_oldest_event
-- When the first version was deployed: no event is older.
SELECT min(created_at) FROM dag_versions;

-- name: find_limit
-- The time before which rows are older than they are kept.
SELECT now() - $1::interval;

-- name: delete_old_invalidations
-- Deletes up to $2 invalidations made before $1 ago that were routed or need not be, and that every reader has processed.
WITH old AS MATERIALIZED (
    SELECT v.id
      FROM data_invalidations v
     WHERE v.created_at < now() - $1::interval AND (v.routed_at IS NOT NULL OR v.disposition = 'AuditOnly')
       AND NOT EXISTS (
           SELECT FROM data_invalidation_jobs j WHERE j.invalidation_id = v.id AND j.processed_at IS NULL)
     LIMIT $2
), jobs AS (
    DELETE FROM data_invalidation_jobs j USING old WHERE j.invalidation_id = old.id
), deleted AS (
    DELETE FROM data_invalidations v USING old WHERE v.id = old.id RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: delete_old_publishes
-- Deletes up to $2 records of batches whose rows were committed before $1 ago, and which are deleted themselves.
WITH deleted AS (
    DELETE FROM buffer_publishes
     WHERE id = ANY (ARRAY(
           SELECT id FROM buffer_publishes
            WHERE status = 'Committed' AND removed_at IS NOT NULL AND settled_at < now() - $1::interval
            ORDER BY settled_at LIMIT $2))
    RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: delete_old_pauses
-- Deletes up to $2 pauses that ended before $1 ago.
WITH deleted AS (
    DELETE FROM pauses
     WHERE id = ANY (ARRAY(SELECT id FROM pauses WHERE until < now() - $1::interval LIMIT $2)) RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: list_old_queries
-- Which of these queries of users ended before $2 ago.
SELECT id FROM query_audit WHERE id = ANY ($1::uuid[]) AND user_id IS NOT NULL AND stored_at < now() - $2::interval;
