-- name: list_user_tables
-- Tables of a query by published name, as far as the user may read them: the generation and the commit. Without a moment
-- the current generation and the last commit; of a commit, the generation that it belongs to; of a time, the generation
-- that was served then.
SELECT a.name, d.id AS dataset_uuid, g.dataset_version, coalesce(d.storage ->> 'kind', 'parquet') <> 'parquet' AS hot,
       coalesce(h.last_commit, 0) AS last_commit,
       CASE WHEN a.at IS NOT NULL
            THEN coalesce((SELECT max(c.number) FROM commits c
                            WHERE c.dataset_uuid = d.id AND c.dataset_version = g.dataset_version
                              AND c.created_at <= a.at), 0)
            -- The last one of this generation: a release that is being built commits to another.
            ELSE coalesce(a.as_of, (SELECT c.number FROM commits c
                                     WHERE c.dataset_uuid = d.id AND c.dataset_version = g.dataset_version
                                     ORDER BY c.number DESC LIMIT 1), h.last_commit, 0) END AS commit,
       CASE WHEN a.at IS NOT NULL OR a.as_of IS NOT NULL
            THEN (SELECT min(c.number) FROM commits c
                   WHERE c.dataset_uuid = d.id AND c.dataset_version = g.dataset_version) END AS first_commit,
       a.at IS NOT NULL OR a.as_of IS NOT NULL AS travels,
       CASE WHEN a.at IS NOT NULL OR a.as_of IS NOT NULL
            THEN (SELECT max(r.up_to_commit) FROM removed_generations r WHERE r.dataset_version = g.dataset_version)
            END AS removed_commit,
       false AS is_foreign, NULL::jsonb AS filters,
       CASE WHEN a.at IS NULL AND a.as_of IS NULL THEN b.dag_name END AS behind
  FROM unnest($4::text[], $5::bigint[], $6::timestamptz[]) AS a (name, as_of, at)
  JOIN datasets_seen($1, $2, $3) d ON d.name = a.name
  JOIN dag_current_versions v ON v.org_id = d.org_id AND v.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = v.dag_version_id AND s.dataset_uuid = d.id
  LEFT JOIN dags_behind b ON b.org_id = v.org_id AND b.dag_name = v.dag_name
  LEFT JOIN dataset_heads h ON h.dataset_uuid = d.id
  CROSS JOIN LATERAL (SELECT coalesce(
      CASE WHEN a.as_of IS NOT NULL
           THEN (SELECT c.dataset_version FROM commits c WHERE c.dataset_uuid = d.id AND c.number = a.as_of)
           WHEN a.at IS NOT NULL
           THEN (SELECT p.dataset_version
                   FROM dag_activations n
                   JOIN dag_version_datasets p ON p.dag_version_id = n.dag_version_id AND p.dataset_uuid = d.id
                  WHERE n.org_id = d.org_id AND n.dag_name = d.producer_dag_name AND n.since <= a.at
                    AND (n.until IS NULL OR n.until > a.at)
                  ORDER BY n.since DESC LIMIT 1) END,
      s.dataset_version) AS dataset_version) g;

-- name: list_readable_names
-- Published names that a user may read, to suggest one in place of an unknown name.
SELECT d.name
  FROM datasets_seen($1, $2, $3) d
 WHERE d.name IS NOT NULL
 ORDER BY d.name
 LIMIT $4;

-- name: list_task_tables
-- Tables of a query of a running attempt: the generations and commits that its token pins, within its organisation, with
-- the filters of its job's inputs: a row must pass one of them. An input without a filter reads all.
SELECT a.name, d.id AS dataset_uuid, v.id AS dataset_version,
       coalesce(d.storage ->> 'kind', 'parquet') <> 'parquet' AS hot, a.pinned AS last_commit,
       CASE WHEN a.at IS NOT NULL
            THEN coalesce((SELECT max(c.number) FROM commits c
                            WHERE c.dataset_uuid = d.id AND c.dataset_version = v.id AND c.created_at <= a.at
                              AND c.number <= a.pinned), 0)
            ELSE coalesce(a.as_of, a.pinned) END AS commit,
       CASE WHEN a.at IS NOT NULL OR a.as_of IS NOT NULL
            THEN (SELECT min(c.number) FROM commits c
                   WHERE c.dataset_uuid = d.id AND c.dataset_version = v.id) END AS first_commit,
       a.at IS NOT NULL OR a.as_of IS NOT NULL AS travels, NULL::bigint AS removed_commit,
       a.as_of IS NOT NULL AND EXISTS (
           SELECT FROM commits c
            WHERE c.dataset_uuid = d.id AND c.number = a.as_of AND c.dataset_version <> v.id) AS is_foreign,
       (SELECT CASE WHEN bool_and(i.where_tree IS NOT NULL) THEN jsonb_agg(i.where_tree ORDER BY i.position) END
          FROM job_inputs i WHERE i.job_id = $7 AND i.dataset_uuid = d.id) AS filters, NULL AS behind
  FROM unnest($2::text[], $3::uuid[], $4::bigint[], $5::bigint[], $6::timestamptz[])
       AS a (name, version, pinned, as_of, at)
  JOIN dataset_versions v ON v.id = a.version AND v.org_id = $1
  JOIN datasets d ON d.id = v.dataset_uuid;

-- name: running_attempt
-- The organisation, job and priority of an attempt that is the current one and running.
SELECT t.org_id, t.job_id, t.priority::text
  FROM tasks t
 WHERE t.id = $1
   AND t.status = 'Running' -- fence
   AND holds_lease(t, $2, $3) -- fence
;

-- name: list_cold_copies
-- The Parquet copies of hot generations: the dataset that a compaction of their DAG writes, as of its last commit, in all
-- generations that any version of the DAG made of this hot generation. A compaction's hot inputs and its outputs are in
-- the same order. Where versions disagree about the dataset, the one that has rows counts.
WITH copies AS (
    SELECT s.dataset_version AS hot_version, cold.dataset_uuid, array_agg(DISTINCT cold.dataset_version) AS generations,
           bool_or(active.dag_version_id IS NOT NULL) AS active, min(j.name) AS job
      FROM unnest($1::uuid[]) AS hot_versions (version)
      JOIN dataset_versions v ON v.id = hot_versions.version
      JOIN dag_version_datasets s ON s.dataset_uuid = v.dataset_uuid AND s.dataset_version = v.id
      JOIN jobs j ON j.dag_version_id = s.dag_version_id AND j.operator = 'parquet_compact'
      JOIN job_inputs i ON i.job_id = j.id AND i.dataset_uuid = s.dataset_uuid AND NOT i.triggers
      CROSS JOIN LATERAL (
          SELECT count(*)::int AS before
            FROM job_inputs b JOIN datasets d ON d.id = b.dataset_uuid
           WHERE b.job_id = j.id AND NOT b.triggers AND b.position < i.position
             AND coalesce(d.storage ->> 'kind', 'parquet') <> 'parquet') hot
      JOIN dag_version_datasets cold
        ON cold.dag_version_id = j.dag_version_id AND cold.dataset_uuid = j.output_datasets[hot.before + 1]
      LEFT JOIN dag_current_versions active ON active.dag_version_id = s.dag_version_id
     GROUP BY s.dataset_version, cold.dataset_uuid
)
SELECT DISTINCT ON (m.hot_version) m.hot_version, m.generations, coalesce(h.last_commit, 0) AS commit
  FROM copies m
  LEFT JOIN dataset_heads h ON h.dataset_uuid = m.dataset_uuid
 ORDER BY m.hot_version,
          EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = ANY (m.generations)) DESC,
          m.active DESC, m.job;

-- name: list_columns
-- The columns of generations, where they are known.
SELECT v.id AS dataset_version, v.columns
  FROM dataset_versions v WHERE v.id = ANY ($1::uuid[]) AND v.columns IS NOT NULL;

-- name: list_files
-- The partitions of generations, each as of a commit, in their order; `n` is the caller's number for them.
SELECT p.partition_key, p.location, p.files, p.valid_from AS commit, lower(p.block_range) AS start,
       upper(p.block_range) - 1 AS "end", p.row_count, p.files_removed_at, p.dataset_version, a.n
  FROM unnest($1::int[], $2::uuid[], $3::bigint[]) AS a (n, version, commit)
  JOIN partition_versions p ON p.dataset_version = a.version AND p.commits @> a.commit
 ORDER BY a.n, lower(p.block_range), p.partition_key;

-- name: store_audit
-- Inserts audit rows of the query service, and entries of the audit for those of users; one that exists is left as it is.
WITH new AS (
    INSERT INTO query_audit (id, org_id, user_id, task_id, attempt, asked_at, sql_sha256, datasets, verdict, code,
                             row_count, bytes, milliseconds)
    SELECT r.id, r.org_id, r.user_id, r.task_id, r.attempt, r.asked_at, decode(r.sql_sha256, 'hex'), r.datasets,
           r.verdict, r.code, r.rows, r.bytes, r.milliseconds
      FROM jsonb_to_recordset($1::jsonb) AS r (
               id uuid, org_id uuid, user_id uuid, task_id uuid, attempt integer, asked_at timestamptz, sql_sha256 text,
               datasets uuid[], verdict query_verdict, code text, rows bigint, bytes bigint, milliseconds bigint)
      JOIN orgs o ON o.id = r.org_id
    ON CONFLICT (id) DO NOTHING
    RETURNING id, org_id, user_id, asked_at, sql_sha256, datasets, verdict::text AS verdict, code
), entries AS (
    INSERT INTO audit_entries (org_id, happened_at, actor, action, object, origin, outcome, code, detail)
    SELECT n.org_id, n.asked_at, u.external_id, 'query', n.id::text, 'query service',
           CASE n.verdict WHEN 'answered' THEN 'done' WHEN 'refused' THEN 'refused' ELSE 'failed' END,
           CASE WHEN n.verdict <> 'answered' THEN coalesce(n.code, n.verdict) END,
           jsonb_build_object('sql_sha256', encode(n.sql_sha256, 'hex'), 'datasets', to_jsonb(n.datasets))
      FROM new n JOIN users u ON u.id = n.user_id
)
SELECT count(*) FROM new;

-- name: prune_audit
-- Deletes audit rows that were stored longer ago than they are kept ($1), the oldest first, up to $2.
WITH pruned AS (
    DELETE FROM query_audit
     WHERE id = ANY (ARRAY(SELECT id FROM query_audit WHERE stored_at < now() - $1::interval ORDER BY stored_at LIMIT $2))
    RETURNING id
)
SELECT count(*) FROM pruned;
