-- name: list_published_datasets
-- The datasets that an organisation publishes, with the columns of their current generations.
SELECT d.id, d.name, d.producer_dag_name AS dag_name, d.storage ->> 'kind' AS storage, v.columns
  FROM datasets d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  LEFT JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  LEFT JOIN dataset_versions v ON v.id = s.dataset_version
 WHERE d.org_id = $1 AND d.name IS NOT NULL;

-- name: list_live_edges
-- Which datasets each dataset is made from, by the active versions.
SELECT DISTINCT written.dataset_uuid AS written, i.dataset_uuid AS read
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id
  JOIN job_inputs i ON i.job_id = j.id
  CROSS JOIN LATERAL unnest(j.output_datasets) AS written (dataset_uuid)
 WHERE c.org_id = $1;

-- name: insert_version
-- Inserts a version; returns no row if one with the same content exists. A concurrent deploy of it waits here.
INSERT INTO dag_versions (id, org_id, dag_name, yaml_hash, yaml, deployed_by, foreign_generations)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: find_active_version
-- The active version of a DAG: its text, the hashes of its jobs, and the datasets of other DAGs that they read.
SELECT v.id, v.yaml, v.yaml_hash, v.foreign_generations,
       coalesce((SELECT jsonb_object_agg(j.name, j.config_hash) FROM jobs j WHERE j.dag_version_id = v.id), '{}')
           AS config_hashes,
       ARRAY(SELECT DISTINCT d.name
               FROM jobs j JOIN job_inputs i ON i.job_id = j.id JOIN datasets d ON d.id = i.dataset_uuid
              WHERE j.dag_version_id = v.id AND d.producer_dag_name <> v.dag_name AND d.name IS NOT NULL) AS foreign_names
  FROM dag_current_versions c
  JOIN dag_versions v ON v.id = c.dag_version_id
 WHERE c.org_id = $1 AND c.dag_name = $2;

-- name: list_served_generations
-- The current generations of these published datasets.
SELECT d.name, s.dataset_version
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
 WHERE d.org_id = $1 AND d.name = ANY ($2::text[]);

-- name: insert_datasets
-- Inserts every output of every job, in a fixed order, so that concurrent deploys do not deadlock. Activation names them.
INSERT INTO datasets (id, org_id, producer_dag_name, producer_job_name, producer_output_index, storage)
SELECT o.id, $1, $2, o.job, o.output, jsonb_build_object('kind', o.kind)
  FROM unnest($3::uuid[], $4::text[], $5::int[], $6::text[]) AS o (id, job, output, kind)
 ORDER BY o.id
ON CONFLICT DO NOTHING;

-- name: insert_generations
-- Inserts the generation of each output; the same job with the same upstream keeps the one that exists.
INSERT INTO dataset_versions (id, org_id, dataset_uuid, storage_location, storage_glob, config_hash)
SELECT g.id, $1, g.dataset_uuid, g.location, g.glob, g.lineage
  FROM unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[]) AS g (id, dataset_uuid, location, glob, lineage)
 ORDER BY g.id
ON CONFLICT DO NOTHING;

-- name: insert_pointers
-- Inserts which generation of each dataset this version serves.
INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version)
SELECT $1, $2, p.dataset_uuid, p.dataset_version FROM unnest($3::uuid[], $4::uuid[]) AS p (dataset_uuid, dataset_version);

-- name: insert_job
-- Inserts a job of a version, with every default filled in.
INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, activation, runtime, operator, source, bootstrap,
                  execution_strategy, idle_timeout, config, config_hash, input_datasets, output_datasets,
                  update_strategy, unique_key, udf_bundle_id, secrets, priority, scaling, max_queue_depth,
                  max_queue_age, resume_queue_depth, resume_queue_age, timeout_seconds, heartbeat_interval_seconds,
                  heartbeat_timeout_seconds, max_attempts, retry_backoff_seconds, retry_backoff_max_seconds, udf_handler,
                  max_platform_failures, makes_whole, replay, memo_hash, addresses, shares_limit)
VALUES ($1, $2, $3, $4, $5, $6::text::job_activation, $7, $8, $9::jsonb, $10::jsonb, $11::text::execution_strategy, $12,
        $13::jsonb, $14, $15::uuid[], $16::uuid[], $17::text::update_strategy, $18::text[], $19, $20::text[],
        $21::text::work_priority, $22::jsonb, $23, $24::interval, $25, $26::interval, $27, $28, $29, $30, $31, $32, $33, $34,
        $35, $36, $37, $38::bytea[], shares_limit($2, $8, $7));

-- name: insert_inputs
-- Inserts the edges of a job; activation of the version makes them live.
INSERT INTO job_inputs (job_id, position, org_id, dataset_uuid, where_tree, name, triggers, columns_read)
SELECT $2, e.n - 1, $1, e.dataset_uuid, e.where_tree, e.name, e.triggers,
       CASE WHEN e.columns_read IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(e.columns_read::jsonb)) END
  FROM unnest($3::uuid[], $4::jsonb[], $5::text[], $6::boolean[], $7::text[])
      WITH ORDINALITY AS e (dataset_uuid, where_tree, name, triggers, columns_read, n);

-- name: insert_column_lineage
-- Inserts which input columns the columns of a job's outputs are made from; two inputs may be one dataset.
INSERT INTO column_lineage (org_id, job_id, output_dataset_uuid, output_column, input_dataset_uuid, input_column)
SELECT DISTINCT $1::uuid, $2::uuid, l.output_dataset_uuid, l.output_column, l.input_dataset_uuid, l.input_column
  FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::text[])
       AS l (output_dataset_uuid, output_column, input_dataset_uuid, input_column);

-- name: lock_bundle
-- The bundle with this hash, locked until the deploy ends: maintenance skips it, or is waited for.
SELECT id, name, kind::text, status::text, error_message AS reason, entry_points FROM udf_bundles WHERE org_id = $1 AND sha256 = $2
   FOR KEY SHARE;

-- name: lock_activation
-- Serializes the activations of an organisation, which check names, edges and cycles across its DAGs.
SELECT pg_advisory_xact_lock(hashtextextended('trace activate ' || $1::uuid, 0));

-- name: find_version
-- The text of a version, and which version of the DAG is active.
SELECT v.yaml, c.dag_version_id AS active
  FROM known_versions v
  LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
 WHERE v.org_id = $1 AND v.dag_name = $2 AND v.id = $3;

-- name: point_inputs
-- Points inputs at the datasets that now have the names by which the inputs refer to them.
WITH moved AS (
    UPDATE job_inputs i SET dataset_uuid = p.dataset_uuid
      FROM unnest($1::uuid[], $2::int[], $3::uuid[]) AS p (job_id, position, dataset_uuid)
     WHERE i.job_id = p.job_id AND i.position = p.position AND i.dataset_uuid <> p.dataset_uuid
    RETURNING i.job_id, i.position, i.dataset_uuid
)
UPDATE jobs j
   SET updated_at = now(),
       input_datasets = (
           SELECT array_agg(coalesce(m.dataset_uuid, i.dataset_uuid) ORDER BY i.position)
             FROM job_inputs i LEFT JOIN moved m ON m.job_id = i.job_id AND m.position = i.position
            WHERE i.job_id = j.id)
 WHERE j.id IN (SELECT job_id FROM moved);

-- name: set_current_version
-- Makes a version the current one; a trigger makes its edges live, and those of the former version not.
INSERT INTO dag_current_versions (org_id, dag_name, dag_version_id)
VALUES ($1, $2, $3)
ON CONFLICT (org_id, dag_name) DO UPDATE SET dag_version_id = excluded.dag_version_id, updated_at = now();

-- name: list_names_in_use
-- Names of this DAG that another active DAG reads and that are not among those that stay ($3, $4: datasets, names).
SELECT d.name, array_agg(DISTINCT j.dag_name ORDER BY j.dag_name) AS readers
  FROM datasets d
  JOIN job_inputs i ON i.dataset_uuid = d.id AND i.live
  JOIN jobs j ON j.id = i.job_id AND j.dag_name <> d.producer_dag_name
 WHERE d.org_id = $1 AND d.producer_dag_name = $2 AND d.name IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM unnest($3::uuid[], $4::text[]) AS kept (id, name) WHERE kept.id = d.id AND kept.name = d.name)
 GROUP BY d.name
 ORDER BY d.name;

-- name: clear_names
-- Clears names that this DAG published and that move or end; before `set_name`, so that two datasets can swap names.
UPDATE datasets d
   SET name = NULL, visibility = 'internal', read_roles = '{}', updated_at = now()
 WHERE d.org_id = $1 AND d.producer_dag_name = $2 AND d.name IS NOT NULL
   AND NOT EXISTS (
       SELECT FROM unnest($3::uuid[], $4::text[]) AS p (id, name) WHERE p.id = d.id AND p.name = d.name);

-- name: set_names
-- Sets the published names of datasets ($2, $3). The roles that the DAG proposes for each ($4: as JSON) count if neither
-- the dataset nor the name was published before; otherwise who may read it stays as it was decided.
WITH access AS (
    INSERT INTO dataset_access (org_id, dataset_uuid, name, visibility, read_roles)
    SELECT $1, p.id, p.name,
           coalesce(a.visibility, CASE WHEN p.roles = '{}' THEN 'org' ELSE 'roles' END::dataset_visibility),
           coalesce(a.read_roles, p.roles)
      FROM (SELECT n.id, n.name, ARRAY(SELECT jsonb_array_elements_text(n.roles::jsonb)) AS roles
              FROM unnest($2::uuid[], $3::text[], $4::text[]) AS n (id, name, roles)) p
      LEFT JOIN LATERAL (
          SELECT k.visibility, k.read_roles
            FROM dataset_access k
           WHERE k.org_id = $1 AND (k.dataset_uuid = p.id OR k.name = p.name)
           ORDER BY k.dataset_uuid = p.id DESC, k.name = p.name DESC, k.set_at DESC
           LIMIT 1) a ON true
    ON CONFLICT (dataset_uuid, name) DO UPDATE SET name = excluded.name
    RETURNING dataset_uuid, name, visibility, read_roles
)
UPDATE datasets d
   SET name = a.name, visibility = a.visibility, read_roles = a.read_roles, updated_at = now()
  FROM access a
 WHERE d.org_id = $1 AND d.id = a.dataset_uuid
   AND (d.name, d.visibility, d.read_roles) IS DISTINCT FROM (a.name, a.visibility, a.read_roles);

-- name: set_storage
-- Sets the kind of storage of datasets to that of the version that becomes active.
UPDATE datasets d
   SET storage = d.storage || jsonb_build_object('kind', o.kind), updated_at = now()
  FROM unnest($2::uuid[], $3::text[]) AS o (id, kind)
 WHERE d.org_id = $1 AND d.id = o.id AND d.storage ->> 'kind' IS DISTINCT FROM o.kind;

-- name: cancel_retired_tasks
-- Cancels tasks of versions that are no longer active and that no release builds, so that they cannot commit; only a
-- source's running task may drain. Where the active version has the same job with the same generations, the task is created again for that job.
WITH live AS (
    -- Three selects, because each has a partial index of its own.
    SELECT id, job_id FROM tasks WHERE status = 'Queued'
    UNION ALL
    SELECT id, job_id FROM tasks
     WHERE status = 'Running' AND NOT EXISTS (SELECT FROM sources s WHERE s.task_id = tasks.id)
    UNION ALL
    SELECT id, job_id FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL
), retired AS (
    SELECT t.id, j.id AS job_id, t.dedupe_key AS work, c.dag_version_id AS active
      FROM live
      JOIN jobs j ON j.id = live.job_id
      JOIN dag_current_versions c
        ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id <> j.dag_version_id
      JOIN tasks t ON t.id = live.id
     WHERE ($1::uuid IS NULL OR c.org_id = $1) AND ($2::text IS NULL OR c.dag_name = $2)
       AND NOT EXISTS (SELECT FROM release_members m WHERE m.dag_version_id = j.dag_version_id AND m.builds)
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), canceled AS (
    UPDATE tasks t
       SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, next_retry_at = NULL,
           error_message = NULL, fault = NULL, cancel_reason = 'another version of the DAG was activated',
           dedupe_key = l.work || ':canceled:' || t.id -- free for the same work, if the version returns
      FROM retired l
     WHERE t.id = l.id AND t.status IN ('Queued', 'Running', 'Failed')
    RETURNING t.id, t.org_id, t.attempt, t.priority, t.history, t.event_id, t.invalidation_id, t.partitions, t.input_versions,
              l.job_id, l.work, l.active
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Canceled', error_message = NULL
      FROM canceled c
     WHERE h.task_id = c.id AND h.attempt = c.attempt AND h.ended_at IS NULL
), successors AS (
    SELECT c.*, j.id AS successor, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime
      FROM canceled c
      JOIN jobs old ON old.id = c.job_id
      JOIN jobs j ON j.dag_version_id = c.active AND j.lineage_id = old.lineage_id
                 AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
     WHERE c.work IS NOT NULL
       -- An invalidation of a generation that is no longer current is dropped.
       AND (c.invalidation_id IS NULL OR EXISTS (
           SELECT FROM data_invalidations v
             JOIN datasets d ON d.id = v.dataset_uuid
             JOIN dag_current_versions now ON now.org_id = d.org_id AND now.dag_name = d.producer_dag_name
             JOIN dag_version_datasets served
               ON served.dag_version_id = now.dag_version_id AND served.dataset_uuid = v.dataset_uuid
              AND served.dataset_version = v.dataset_version
            WHERE v.id = c.invalidation_id))
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, invalidation_id,
                       history, partitions, input_versions, woken_at)
    SELECT org_id, successor, priority, max_attempts, timeout_seconds, work, event_id, invalidation_id, history, partitions,
           input_versions, CASE WHEN max_concurrency IS NULL THEN now() END
      FROM successors
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM created WHERE invalidation_id IS NOT NULL
    ON CONFLICT (invalidation_id, job_id) DO UPDATE SET task_id = excluded.task_id
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT m.org_id, 'enqueue_task', wake_up_of(m.id, j.runtime, m.priority, m.org_id, m.job_id)
      FROM created m JOIN jobs j ON j.id = m.job_id
     WHERE m.woken_at IS NOT NULL
)
SELECT (SELECT count(*) FROM canceled) AS canceled, (SELECT count(*) FROM created) AS made_again;

-- name: copy_state
-- Copies operator state to the jobs of a version that is activated ($2), from the job of the same lineage that wrote its
-- own last. A source that still drains since the version was last active keeps its own state: the same source of the
-- former version has waited for it and not run, so its state is older.
INSERT INTO operator_state (org_id, job_id, state_key, state)
SELECT DISTINCT ON (j.id, s.state_key) j.org_id, j.id, s.state_key, s.state
  FROM jobs j
  JOIN jobs same ON same.lineage_id = j.lineage_id
  JOIN operator_state s ON s.job_id = same.id
 WHERE j.org_id = $1 AND j.dag_version_id = $2
   AND NOT EXISTS (SELECT FROM sources d WHERE d.job_id = j.id AND d.state = 'Draining')
 ORDER BY j.id, s.state_key, s.updated_at DESC, same.id = j.id DESC
ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now();

-- name: list_dags
-- Every DAG of an organisation: number of versions, active version, number of jobs.
SELECT d.dag_name AS name, c.dag_version_id AS active_version, d.versions,
       (SELECT count(*) FROM jobs j WHERE j.dag_version_id = coalesce(c.dag_version_id, d.newest)) AS jobs,
       greatest(d.deployed_at, c.updated_at) AS updated_at
  FROM (SELECT org_id, dag_name, count(*) AS versions, max(created_at) AS deployed_at,
               (array_agg(id ORDER BY created_at DESC, id))[1] AS newest
          FROM known_versions WHERE org_id = $1 GROUP BY org_id, dag_name) d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.dag_name
 ORDER BY d.dag_name;

-- name: list_versions
-- The versions of a DAG, the newest first, and which one is active.
SELECT v.id AS dag_version_id, v.yaml_hash, v.id = c.dag_version_id IS TRUE AS active, v.created_at,
       coalesce(u.email, u.external_id) AS deployed_by
  FROM known_versions v
  LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
  LEFT JOIN users u ON u.org_id = v.org_id AND u.id = v.deployed_by
 WHERE v.org_id = $1 AND v.dag_name = $2
 ORDER BY v.created_at DESC, v.id DESC;

-- name: list_jobs
-- The jobs of a version: what they read and write, by published name or else by producer, and the length of their queue.
SELECT j.name, j.activation::text, j.runtime, j.operator, j.source ->> 'kind' AS source, s.state::text AS source_state,
       ARRAY(SELECT coalesce(d.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text)
               FROM job_inputs i JOIN datasets d ON d.id = i.dataset_uuid
              WHERE i.job_id = j.id ORDER BY i.position) AS inputs,
       ARRAY(SELECT coalesce(d.name, j.name || '[' || o.n - 1 || ']')
               FROM unnest(j.output_datasets) WITH ORDINALITY AS o (id, n) JOIN datasets d ON d.id = o.id
              ORDER BY o.n) AS outputs,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued') AS queued,
       (SELECT count(*) FROM tasks t
         WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL) AS in_flight,
       CASE WHEN j.activation = 'reactive' THEN
           CASE WHEN EXISTS (SELECT FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued')
                  OR EXISTS (SELECT FROM tasks t
                              WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL)
                THEN 'Running' ELSE 'Idle' END END AS state,
       (SELECT extract(epoch FROM now() - min(t.queued_at))::float8 FROM tasks t
         WHERE t.job_id = j.id AND t.status = 'Queued') AS oldest_seconds,
       EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = j.id) AS paused,
       (SELECT count(*) FROM held_events h WHERE h.job_id = j.id) AS held
  FROM jobs j
  LEFT JOIN sources s ON s.job_id = j.id
 WHERE j.org_id = $1 AND j.dag_version_id = $2
 ORDER BY j.name;

-- name: list_role_slugs
-- The roles of an organisation, by which datasets are shared.
SELECT slug FROM org_roles WHERE org_id = $1;

-- name: find_active
-- The active version of a DAG, if it has one; no row: the DAG does not exist.
SELECT c.dag_version_id
  FROM known_versions v
  LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
 WHERE v.org_id = $1 AND v.dag_name = $2
 LIMIT 1;

-- name: clear_current_version
-- Makes no version of a DAG the current one; a trigger makes its edges not live.
DELETE FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2;

-- name: cancel_inactive_tasks
-- Cancels tasks of DAGs without an active version, so that they cannot commit; a source's running task may drain. NULL: of
-- all organisations and DAGs. How many. Their work is made again if the version is activated again; what fired a source is not.
WITH live AS (
    -- Three selects, because each has a partial index of its own.
    SELECT id, job_id FROM tasks WHERE status = 'Queued'
    UNION ALL
    SELECT id, job_id FROM tasks
     WHERE status = 'Running' AND NOT EXISTS (SELECT FROM sources s WHERE s.task_id = tasks.id)
    UNION ALL
    SELECT id, job_id FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL
), inactive AS (
    SELECT t.id, j.activation
      FROM live
      JOIN jobs j ON j.id = live.job_id
      JOIN tasks t ON t.id = live.id
     WHERE ($1::uuid IS NULL OR j.org_id = $1) AND ($2::text IS NULL OR j.dag_name = $2)
       AND NOT EXISTS (SELECT FROM dag_current_versions c WHERE c.org_id = j.org_id AND c.dag_name = j.dag_name)
       AND NOT EXISTS (SELECT FROM release_members m WHERE m.dag_version_id = j.dag_version_id AND m.builds)
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), canceled AS (
    UPDATE tasks t
       SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, next_retry_at = NULL,
           error_message = NULL, fault = NULL, cancel_reason = 'the DAG was deactivated',
           dedupe_key = CASE WHEN i.activation = 'source' THEN t.dedupe_key ELSE t.dedupe_key || ':canceled:' || t.id END
      FROM inactive i
     WHERE t.id = i.id AND t.status IN ('Queued', 'Running', 'Failed')
    RETURNING t.id, t.attempt
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Canceled', error_message = NULL
      FROM canceled c
     WHERE h.task_id = c.id AND h.attempt = c.attempt AND h.ended_at IS NULL
)
SELECT count(*) FROM canceled;
