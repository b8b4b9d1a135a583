-- name: store_events
-- Events of one fenced call, each once, with an outbox entry to route those of the current generation.
WITH new_events AS (
    SELECT * FROM unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::text[], $9::bigint[], $10::text[],
                         $11::bigint[], $12::bigint[]) WITH ORDINALITY
        AS v (event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop,
              place)
), stored AS (
    INSERT INTO events (id, org_id, origin, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, partition_key, block_range, history, disposition, audit_reason)
    SELECT v.event_id, $1, 'task', v.kind::event_kind, $3, $2, $2, v.dataset_uuid, v.dataset_version, v.scope,
           v.cursor_value, v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END,
           coalesce((SELECT t.history FROM tasks t WHERE t.id = $2), false),
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END
      FROM new_events v
      JOIN datasets d ON d.id = v.dataset_uuid AND d.org_id = $1
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
     ORDER BY v.place -- their entries rise in the order of the call
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid, disposition
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM stored WHERE disposition = 'Route'
)
SELECT count(*) FROM stored;

-- name: store_invalidation
-- A part of a generation that no longer holds, once, with an outbox entry to route it.
WITH stored AS (
    INSERT INTO data_invalidations (id, org_id, dataset_uuid, dataset_version, block_range, partition_key, reason,
                                    follows_commit, producer_task_id, producer_attempt, requested_by, disposition, audit_reason)
    SELECT $1, $2, $3, $4, CASE WHEN $5::bigint IS NOT NULL THEN int8range($5, $6) END, $12, $7, $8, $9, $10, $11,
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END
      FROM datasets d
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = d.id AND served.dataset_version = $4
     WHERE d.id = $3 AND d.org_id = $2
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, disposition
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'route_invalidation', jsonb_build_object('invalidation_id', id)
      FROM stored WHERE disposition = 'Route'
)
SELECT count(*) FROM stored;

-- name: has_partition
-- Whether a generation ($1, $2) has a partition with this key ($3), or had an event about it.
SELECT EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = $2 AND p.partition_key = $3 AND p.valid_to IS NULL)
    OR EXISTS (SELECT FROM events e WHERE e.dataset_uuid = $1 AND e.dataset_version = $2 AND e.partition_key = $3);

-- name: is_published
-- Whether this batch has been published before.
SELECT EXISTS (SELECT FROM buffer_publishes
                WHERE task_id = $1 AND attempt = $2 AND dataset_uuid = $3 AND batch_uri = $4);

-- name: publish_buffer
-- A pointer to a batch, once, with an outbox entry to put it on the Buffer Queue; the row as it is, new or not.
WITH stored AS (
    INSERT INTO buffer_publishes (org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri, content_type,
                                  record_count, batch_size_bytes, content_hash)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (task_id, attempt, dataset_uuid, batch_uri) DO NOTHING
    RETURNING id, org_id, content_hash
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM stored
)
SELECT id, content_hash FROM stored
UNION ALL
SELECT id, content_hash FROM buffer_publishes
 WHERE task_id = $2 AND attempt = $3 AND dataset_uuid = $4 AND batch_uri = $6;

-- name: save_state
-- Durable operator state, in the transaction of the completion.
INSERT INTO operator_state (org_id, job_id, state)
VALUES ($1, $2, $3::jsonb)
ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now();

-- name: acknowledge_bootstrap
-- The source has reset its outputs, which it does once for each version: it has reported something since.
UPDATE jobs SET bootstrapped_at = now() WHERE id = $1 AND bootstrap IS NOT NULL AND bootstrapped_at IS NULL;
