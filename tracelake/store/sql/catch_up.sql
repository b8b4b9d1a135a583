-- name: request_all
-- The inputs of a version ($1, $2: organisation, version) and of other active DAGs that read what its DAG makes are compared
-- from now on, from their first partition. Jobs that take no history start with the events that follow.
INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
SELECT i.job_id, i.dataset_uuid, i.org_id
  FROM jobs j
  JOIN job_inputs i ON i.job_id = j.id AND i.triggers
 WHERE j.dag_version_id = $2 AND j.org_id = $1 AND j.takes_history AND j.activation = 'reactive'
 UNION
SELECT i.job_id, i.dataset_uuid, i.org_id
  FROM dag_versions v
  JOIN datasets d ON d.org_id = v.org_id AND d.producer_dag_name = v.dag_name
  JOIN job_inputs i ON i.dataset_uuid = d.id AND i.live AND i.triggers
  JOIN jobs j ON j.id = i.job_id AND j.takes_history AND j.activation = 'reactive'
 WHERE v.id = $2 AND v.org_id = $1
 ORDER BY 1, 2
ON CONFLICT (job_id, dataset_uuid) DO UPDATE
   SET due_at = excluded.due_at, requested_at = excluded.requested_at, stage = excluded.stage,
       after_start = excluded.after_start, after_key = excluded.after_key, after_time = excluded.after_time,
       after_event = excluded.after_event, again = false;

-- name: mark_read_otherwise
-- Readers in other DAGs ($1: organisation) of datasets whose generation is another one in the activated version ($3) than in
-- the former ($2), and that have processed other generations since they processed this one: what they made of it has been
-- replaced, so it is to be processed again.
WITH changed AS MATERIALIZED (
    SELECT s.dataset_uuid, s.dataset_version, i.job_id
      FROM dag_versions v
      JOIN dag_version_datasets s ON s.dag_version_id = v.id
      LEFT JOIN dag_version_datasets was ON was.dag_version_id = $2 AND was.dataset_uuid = s.dataset_uuid
      JOIN job_inputs i ON i.dataset_uuid = s.dataset_uuid AND i.live AND i.triggers AND i.org_id = $1
      JOIN jobs j ON j.id = i.job_id AND j.dag_name <> v.dag_name
     WHERE v.id = $3 AND was.dataset_version IS DISTINCT FROM s.dataset_version
), readers AS MATERIALIZED (
    SELECT r.lineage_id, r.dataset_version, max(o.read_at) AS otherwise_at
      FROM changed d
      JOIN dataset_versions g
        ON g.dataset_uuid = d.dataset_uuid AND g.generation IS NULL AND g.id <> d.dataset_version
      JOIN job_reads r ON r.job_id = d.job_id AND r.dataset_uuid = d.dataset_uuid
      JOIN processed_inputs o ON o.lineage_id = r.lineage_id AND o.dataset_version = g.id
     GROUP BY 1, 2
)
UPDATE processed_inputs p
   SET again = true
  FROM readers r
 WHERE p.lineage_id = r.lineage_id AND p.dataset_version = r.dataset_version AND p.read_at < r.otherwise_at AND NOT p.again;

-- name: route_missed_invalidations
-- Invalidations of what the jobs of a version ($1, $2: as for `request_all`) read, that came since a job of their lineage was
-- deployed and that none of that lineage has processed: each is routed again, for those jobs only.
WITH readers AS MATERIALIZED (
    SELECT j.id FROM jobs j WHERE j.dag_version_id = $2
    UNION
    SELECT i.job_id
      FROM dag_versions v
      JOIN datasets d ON d.org_id = v.org_id AND d.producer_dag_name = v.dag_name
      JOIN job_inputs i ON i.dataset_uuid = d.id AND i.live
     WHERE v.id = $2
), missed AS (
    SELECT v.id, v.org_id, jsonb_agg(DISTINCT r.job_id) AS jobs
      FROM readers
      JOIN job_reads r ON r.job_id = readers.id
      JOIN datasets d ON d.id = r.dataset_uuid
      JOIN dag_versions activated ON activated.id = $2
      JOIN data_invalidations v ON v.dataset_version = r.dataset_version
     WHERE r.org_id = $1 AND r.takes_history AND activated.dag_name IN (r.dag_name, d.producer_dag_name)
       AND v.created_at >= (SELECT min(same.created_at) FROM jobs same WHERE same.lineage_id = r.lineage_id)
       AND EXISTS (SELECT FROM processed_inputs p
                    WHERE p.lineage_id = r.lineage_id AND p.dataset_version = r.dataset_version)
       AND NOT EXISTS (
           SELECT FROM data_invalidation_jobs s
             JOIN jobs same ON same.id = s.job_id AND same.lineage_id = r.lineage_id
            WHERE s.invalidation_id = v.id AND s.processed_at IS NOT NULL)
     GROUP BY v.id, v.org_id
)
INSERT INTO outbox (org_id, kind, payload, dedupe_key)
SELECT org_id, 'route_invalidation', jsonb_build_object('invalidation_id', id, 'jobs', jobs, 'history', true),
       'missed:' || $2 || ':' || id
  FROM missed
ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND status IN ('Pending', 'Processing') DO NOTHING;

-- name: take
-- The input whose comparison is due, locked: where it stands, and the generation that the job reads. Inputs of jobs with a
-- long queue ($1), or that are paused, wait; those of versions that no longer run are deleted by `forget`.
SELECT c.job_id, c.dataset_uuid, r.dataset_version, r.makes_whole, c.stage, c.after_start, c.after_key, c.after_time,
       c.after_event, c.requested_at > now() - $2::interval AS soon, c.requested_at + $2::interval AS settled_at,
       m.release_id IS NOT NULL AS builds, j.output_datasets,
       -- Another version has the same job: what its tasks wrote may be what those of this one would write.
       j.memo_hash IS NOT NULL AND EXISTS (
           SELECT FROM jobs o WHERE o.org_id = j.org_id AND o.memo_hash = j.memo_hash AND o.id <> j.id) AS may_reuse
  FROM catch_ups c
  JOIN jobs j ON j.id = c.job_id
  JOIN running_versions a ON a.org_id = j.org_id AND a.dag_name = j.dag_name AND a.dag_version_id = j.dag_version_id
  LEFT JOIN job_reads r ON r.job_id = c.job_id AND r.dataset_uuid = c.dataset_uuid
  LEFT JOIN release_members m ON m.dag_version_id = j.dag_version_id AND m.builds
 WHERE c.due_at <= now()
   -- In a release, a job that makes its whole output anew waits until the others have built theirs.
   AND NOT (m.release_id IS NOT NULL AND j.makes_whole AND EXISTS (
       SELECT FROM release_members o
         JOIN jobs b ON b.dag_version_id = o.dag_version_id AND NOT b.makes_whole
        WHERE o.release_id = m.release_id
          AND (EXISTS (SELECT FROM catch_ups w WHERE w.job_id = b.id AND w.walked_at IS NULL)
               OR EXISTS (SELECT FROM tasks t WHERE t.job_id = b.id AND t.status = 'Queued')
               OR EXISTS (SELECT FROM tasks t
                           WHERE t.job_id = b.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL))))
   AND (SELECT count(*) FROM (SELECT FROM tasks t WHERE t.job_id = c.job_id AND t.status = 'Queued' LIMIT $1) q) < $1
   AND NOT EXISTS (SELECT FROM pauses p
                    WHERE p.job_id = c.job_id AND p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = 'bulk'))
 ORDER BY c.due_at, c.job_id
 LIMIT 1
   FOR UPDATE OF c SKIP LOCKED;

-- name: forget
-- Deletes comparisons of versions that are no longer active, and of inputs that an active version no longer reads.
DELETE FROM catch_ups c
 USING jobs j
 WHERE j.id = c.job_id
   AND (NOT EXISTS (SELECT FROM running_versions a
                     WHERE a.org_id = j.org_id AND a.dag_name = j.dag_name AND a.dag_version_id = j.dag_version_id)
        OR NOT EXISTS (SELECT FROM job_inputs i
                        WHERE i.job_id = c.job_id AND i.dataset_uuid = c.dataset_uuid AND i.triggers));

-- name: continue_pass
-- Records how far a pass has come.
UPDATE catch_ups
   SET stage = $3, after_start = $4, after_key = $5, after_time = $6, after_event = $7, tasks = tasks + $8
 WHERE job_id = $1 AND dataset_uuid = $2;

-- name: end_pass
-- A pass has ended: the next one is due at $3, or else after $4; at once if an update of the whole came meanwhile.
UPDATE catch_ups
   SET stage = DEFAULT, after_start = DEFAULT, after_key = DEFAULT, after_time = DEFAULT, after_event = DEFAULT,
       tasks = tasks + $5, walked_at = now(), again = false,
       due_at = CASE WHEN again THEN now() ELSE coalesce($3, now() + $4::interval) END
 WHERE job_id = $1 AND dataset_uuid = $2;

-- name: next_due
-- Seconds until a comparison is due.
SELECT extract(epoch FROM min(due_at) - now())::float8 FROM catch_ups;

-- name: list_partitions
-- The current partitions of a generation ($1) after a place ($2, $3), in the order of their blocks, each with the commit
-- since which it has had its content; $4: at most so many, $5, $6: only those that overlap these blocks.
SELECT 'partition' AS kind, p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop,
       NULL::bigint AS cursor_value, coalesce(p.content_since, p.valid_from) AS commit_number, NULL::uuid AS event_id,
       NULL::timestamptz AS created_at
  FROM partition_versions p
 WHERE p.dataset_version = $1 AND p.valid_to IS NULL AND (coalesce(lower(p.block_range), -1), p.partition_key) > ($2, $3)
   AND ($5::bigint IS NULL OR p.block_range && int8range($5, $6))
   AND ($6::bigint IS NULL OR coalesce(lower(p.block_range), -1) < $6)
 ORDER BY coalesce(lower(p.block_range), -1), p.partition_key
 LIMIT $4;

-- name: list_partitions_newest
-- As `list_partitions`, from the last block to the first.
SELECT 'partition' AS kind, p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop,
       NULL::bigint AS cursor_value, coalesce(p.content_since, p.valid_from) AS commit_number, NULL::uuid AS event_id,
       NULL::timestamptz AS created_at
  FROM partition_versions p
 WHERE p.dataset_version = $1 AND p.valid_to IS NULL AND (coalesce(lower(p.block_range), -1), p.partition_key) < ($2, $3)
   AND ($5::bigint IS NULL OR p.block_range && int8range($5, $6))
   AND ($6::bigint IS NULL OR coalesce(lower(p.block_range), -1) < $6)
 ORDER BY coalesce(lower(p.block_range), -1) DESC, p.partition_key DESC
 LIMIT $4;

-- name: list_events
-- The events of a dataset ($1) after a place ($3, $4), oldest first, $5 at most. Of other generations than $2, and of
-- partitions with a commit, which `list_partitions` lists, only the place is used.
SELECT e.kind::text, e.partition_key, lower(e.block_range) AS start, upper(e.block_range) AS stop, e.cursor_value,
       e.commit_number, e.id AS event_id, e.created_at,
       e.dataset_version = $2 AND (e.kind <> 'partition' OR e.commit_number IS NULL) AS counts
  FROM events e
 WHERE e.dataset_uuid = $1 AND e.created_at >= $3 AND (e.created_at, e.id) > ($3, $4)
 ORDER BY e.created_at, e.id
 LIMIT $5;

-- name: last_commit
-- The last commit of a generation ($1, $2) that changed a current partition, and that partition: what a job that makes its
-- whole output anew must have read. Each half uses an index of its own.
SELECT 'partition' AS kind, p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop,
       NULL::bigint AS cursor_value, p.since AS commit_number, NULL::uuid AS event_id, NULL::timestamptz AS created_at
  FROM ((SELECT n.partition_key, n.block_range, n.valid_from AS since
           FROM partition_versions n
          WHERE n.dataset_uuid = $1 AND n.dataset_version = $2 AND n.valid_to IS NULL AND n.content_since IS NULL
          ORDER BY n.valid_from DESC LIMIT 1)
         UNION ALL
        (SELECT n.partition_key, n.block_range, n.content_since
           FROM partition_versions n
          WHERE n.dataset_uuid = $1 AND n.dataset_version = $2 AND n.valid_to IS NULL AND n.content_since IS NOT NULL
          ORDER BY n.content_since DESC LIMIT 1)) p
 ORDER BY p.since DESC
 LIMIT 1;

-- name: last_event
-- The last event of a generation ($1, $2) that no partition shows.
SELECT e.kind::text, e.partition_key, lower(e.block_range) AS start, upper(e.block_range) AS stop, e.cursor_value,
       e.commit_number, e.id AS event_id, e.created_at
  FROM events e
 WHERE e.dataset_uuid = $1 AND e.dataset_version = $2 AND (e.kind <> 'partition' OR e.commit_number IS NULL)
 ORDER BY e.created_at DESC, e.id DESC
 LIMIT 1;

-- name: create_lacking
-- Catches up: of these units of an input ($4 to $11: kind, partition, range, cursor, commit, event, time), those that the
-- job ($1) has not processed in this generation ($2, $3) become tasks under the keys that routing gives them, so that
-- neither makes a task that the other has made; at most $12. Work that has a task is left alone, unless with $13 that task
-- failed or was canceled for good. A job that makes its whole output anew needs no task while one is queued: that one reads
-- everything. $14: the units are of the past, whenever they were made. $15: no task is woken, and their
-- ids are returned. Units about all of a dataset are left out where the
-- job gets a task for each partition, and partitions that such a unit announced where it gets one for each update. A job
-- that takes no history gets tasks only for what came since its version was activated.
WITH units AS (
    SELECT * FROM unnest($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::uuid[],
                         $11::timestamptz[])
        WITH ORDINALITY AS u (kind, partition_key, start, stop, cursor_value, commit_number, event_id, created_at, n)
), job AS MATERIALIZED (
    SELECT * FROM job_reads r WHERE r.job_id = $1 AND r.dataset_uuid = $2 AND r.dataset_version = $3
), active AS MATERIALIZED (
    -- The same job in the active version, if this one is of a release: both write one generation.
    SELECT same.id
      FROM job j
      JOIN jobs same ON same.lineage_id = j.lineage_id AND same.id <> j.job_id
      JOIN dag_current_versions c ON c.org_id = same.org_id AND c.dag_version_id = same.dag_version_id
      JOIN job_reads r ON r.job_id = same.id AND r.dataset_uuid = $2 AND r.dataset_version = $3 AND r.takes_history
), unprocessed AS MATERIALIZED (
    SELECT u.*, j.makes_whole, j.makes_whole OR s.splits OR u.kind <> 'partition' AS is_own_update,
           CASE WHEN u.start IS NOT NULL THEN int8range(u.start, u.stop) END AS block_range,
           CASE WHEN done.again THEN ':again:' || done.task_id ELSE '' END AS suffix
      FROM job j
      CROSS JOIN LATERAL reads_whole(j.job_id, j.lineage_id, $3) s
      JOIN units u ON j.makes_whole OR CASE WHEN u.kind <> 'partition' THEN NOT s.splits
                                            ELSE s.splits OR (u.commit_number <= s.read_up_to) IS NOT TRUE END
      LEFT JOIN processed_inputs done
             ON done.lineage_id = j.lineage_id AND done.dataset_version = $3
            AND done.partition_key = CASE WHEN j.makes_whole THEN ''
                                          ELSE processed_key(u.partition_key, u.cursor_value, u.commit_number) END
     WHERE done.task_id IS NULL OR done.again
        OR CASE WHEN u.commit_number IS NOT NULL THEN (done.commit_number >= u.commit_number) IS NOT TRUE
                WHEN j.makes_whole THEN done.read_at < u.created_at
                WHEN u.cursor_value IS NOT NULL THEN (done.cursor_value >= u.cursor_value) IS NOT TRUE
                ELSE false END
), named AS (
    -- While no partition of the generation was ever replaced, none was written twice: that is not looked up for each.
    SELECT u.*, event_task_key(u.kind::event_kind, $2, $3, u.cursor_value, u.partition_key, u.block_range,
                               CASE WHEN u.kind <> 'partition' OR o.replaced THEN u.commit_number END) || u.suffix AS work
      FROM unprocessed u
     CROSS JOIN (SELECT EXISTS (SELECT FROM partition_versions p
                                 WHERE p.dataset_version = $3 AND p.valid_to IS NOT NULL) AS replaced) o
     WHERE NOT (u.makes_whole AND EXISTS (SELECT FROM tasks t WHERE t.job_id = $1 AND t.status = 'Queued'))
), lacking AS MATERIALIZED (
    SELECT u.*, u.work || CASE WHEN t.id IS NULL THEN '' ELSE ':after:' || t.id END AS dedupe_key
      FROM named u
      LEFT JOIN tasks t ON t.job_id = $1 AND t.dedupe_key = u.work
     -- A task that was superseded, or read too early, is no obstacle to a job that makes its whole output anew.
     -- Looked up only for units without a task: else it would be for all of them, before the tasks are joined.
     WHERE CASE WHEN t.id IS NULL THEN u.is_own_update OR NOT is_part_of_update($2, $3, u.commit_number)
                ELSE (u.makes_whole AND (t.status = 'Completed' OR t.superseded_by IS NOT NULL))
                  OR ($13::boolean AND (t.status = 'Canceled' OR (t.status = 'Failed' AND t.next_retry_at IS NULL))) END
       -- What the active version has done or will do is left to it; what failed there for good is not.
       AND NOT EXISTS (SELECT FROM active a LEFT JOIN tasks d ON d.job_id = a.id AND d.dedupe_key = u.work
                        WHERE (d.status = 'Canceled' OR (d.status = 'Failed' AND d.next_retry_at IS NULL)) IS NOT TRUE)
     ORDER BY u.n
     LIMIT $12
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, history, partitions,
                       input_versions, woken_at)
    SELECT j.org_id, j.job_id, CASE WHEN h.history THEN 'bulk' ELSE h.priority END, j.max_attempts, j.timeout_seconds,
           u.dedupe_key, u.event_id, h.history,
           CASE WHEN u.partition_key IS NOT NULL THEN ARRAY[u.partition_key] END,
           trigger_of($2, $3, u.cursor_value, u.partition_key, u.block_range, u.commit_number),
           CASE WHEN j.max_concurrency IS NULL AND NOT $15::boolean THEN now() END
      FROM job j
     CROSS JOIN lacking u
     CROSS JOIN LATERAL (
         -- What came after the version was activated is new, even if it is compared before it is routed: jobs with effects
         -- outside their own generations run for it.
         SELECT w.priority, $14::boolean OR u.suffix <> '' OR coalesce(m.created_at < v.updated_at OR m.history, true) AS history
           FROM jobs w
           LEFT JOIN dag_current_versions v ON v.dag_version_id = w.dag_version_id
           LEFT JOIN LATERAL (
               SELECT e.created_at, e.history FROM events e WHERE e.id = u.event_id
               UNION ALL
               SELECT c.created_at, coalesce(t.history, true)
                 FROM commits c LEFT JOIN tasks t ON t.id = c.task_id
                WHERE u.event_id IS NULL AND c.dataset_uuid = $2 AND c.number = u.commit_number) m ON true
          WHERE w.id = j.job_id) h
     WHERE j.takes_history OR $14::boolean OR NOT h.history
     -- In the order of the units, which their ids then have too. Should a completion create the same tasks in another order,
     -- Postgres ends one of the two, and it is repeated.
     ORDER BY u.n
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM job j
      CROSS JOIN created c
     WHERE c.woken_at IS NOT NULL
     ORDER BY c.id
)
SELECT count(*) AS created, CASE WHEN $15 THEN array_agg(id ORDER BY id) END AS held FROM created;

-- name: list_unfinished
-- Of these units of an input ($4 to $11, as for `create_lacking`), those that the job ($1) has not processed in this
-- generation ($2, $3), and why: a task waits or runs, one failed or was canceled for good, or none has been created yet. A
-- job that takes no history has nothing to do with units that it never had a task for: these are `skipped`.
WITH units AS (
    SELECT * FROM unnest($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::uuid[],
                         $11::timestamptz[])
        WITH ORDINALITY AS u (kind, partition_key, start, stop, cursor_value, commit_number, event_id, created_at, n)
), unprocessed AS MATERIALIZED (
    SELECT u.*, j.makes_whole, j.takes_history, j.makes_whole OR s.splits OR u.kind <> 'partition' AS is_own_update,
           CASE WHEN u.start IS NOT NULL THEN int8range(u.start, u.stop) END AS block_range,
           CASE WHEN done.again THEN ':again:' || done.task_id ELSE '' END AS suffix
      FROM job_reads j
      CROSS JOIN LATERAL reads_whole(j.job_id, j.lineage_id, $3) s
      JOIN units u ON j.makes_whole OR CASE WHEN u.kind <> 'partition' THEN NOT s.splits
                                            ELSE s.splits OR (u.commit_number <= s.read_up_to) IS NOT TRUE END
      LEFT JOIN processed_inputs done
             ON done.lineage_id = j.lineage_id AND done.dataset_version = $3
            AND done.partition_key = CASE WHEN j.makes_whole THEN ''
                                          ELSE processed_key(u.partition_key, u.cursor_value, u.commit_number) END
     WHERE j.job_id = $1 AND j.dataset_uuid = $2 AND j.dataset_version = $3
       AND (done.task_id IS NULL OR done.again
            OR CASE WHEN u.commit_number IS NOT NULL THEN (done.commit_number >= u.commit_number) IS NOT TRUE
                    WHEN j.makes_whole THEN done.read_at < u.created_at
                    WHEN u.cursor_value IS NOT NULL THEN (done.cursor_value >= u.cursor_value) IS NOT TRUE
                    ELSE false END)
), named AS MATERIALIZED (
    SELECT u.n, u.makes_whole, u.takes_history,
           event_task_key(u.kind::event_kind, $2, $3, u.cursor_value, u.partition_key, u.block_range,
                          CASE WHEN u.kind <> 'partition' OR o.replaced THEN u.commit_number END) || u.suffix AS work
      FROM unprocessed u
     CROSS JOIN (SELECT EXISTS (SELECT FROM partition_versions p
                                 WHERE p.dataset_version = $3 AND p.valid_to IS NOT NULL) AS replaced) o
     WHERE u.is_own_update OR NOT is_part_of_update($2, $3, u.commit_number)
)
SELECT u.n::int - 1 AS place,
       CASE WHEN t.id IS NULL AND NOT u.takes_history THEN 'skipped'
            WHEN u.makes_whole AND EXISTS (SELECT FROM tasks q WHERE q.job_id = $1 AND q.status = 'Queued') THEN 'pending'
            WHEN t.id IS NULL OR t.superseded_by IS NOT NULL OR t.status = 'Completed' THEN 'missing'
            WHEN t.status = 'Canceled' OR (t.status = 'Failed' AND t.next_retry_at IS NULL) THEN 'failed'
            ELSE 'pending' END AS state
  FROM named u
  LEFT JOIN tasks t ON t.job_id = $1 AND t.dedupe_key = u.work
 ORDER BY u.n;

-- name: list_reads
-- The inputs that trigger jobs of active versions: of a DAG ($2), or of one of its jobs ($3).
SELECT r.job_id, r.job_name, r.dataset_uuid, r.dataset_version, r.makes_whole, r.takes_history,
       coalesce(d.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text) AS input
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
  JOIN job_reads r ON r.job_id = j.id
  JOIN datasets d ON d.id = r.dataset_uuid
 WHERE c.org_id = $1 AND c.dag_name = $2 AND ($3::text IS NULL OR j.name = $3)
 ORDER BY r.job_name, input;

-- name: list_names
-- What a scope may name: every DAG of an organisation with a version, and the jobs of those that are active.
SELECT v.dag_name, a.dag_version_id IS NOT NULL AS active, j.name AS job_name, j.source ->> 'kind' AS source
  FROM (SELECT DISTINCT org_id, dag_name FROM known_versions WHERE org_id = $1) v
  LEFT JOIN dag_current_versions a ON a.org_id = v.org_id AND a.dag_name = v.dag_name
  LEFT JOIN jobs j ON j.dag_version_id = a.dag_version_id
 ORDER BY 1, 3;

-- name: list_writers
-- The jobs of active versions that write a dataset, by its name ($5) or id ($4), if the user may see it.
SELECT j.dag_name, j.name AS job_name
  FROM datasets_seen($1, $2, $3) d
  JOIN dag_current_versions c ON c.org_id = d.org_id
  JOIN jobs j ON j.dag_version_id = c.dag_version_id AND d.id = ANY (j.output_datasets)
 WHERE d.id = $4::uuid OR d.name = $5::text
 ORDER BY 1, 2;

-- name: list_dataset_names
-- The published names that a user may see.
SELECT d.name FROM datasets_seen($1, $2, $3) d WHERE d.name IS NOT NULL;
