-- name: insert_comparisons
-- The datasets of a release ($1) that its former versions have too, in another generation. $2, $3: the limits of some.
INSERT INTO release_comparisons (release_id, org_id, dataset_uuid, former_version, dataset_version, limits, state)
SELECT m.release_id, m.org_id, n.dataset_uuid, f.dataset_version, n.dataset_version, coalesce(l.limits, '{}'),
       CASE WHEN coalesce(d.storage ->> 'kind', 'parquet') = 'parquet' THEN 'Idle' ELSE 'Skipped' END::comparison_state
  FROM release_members m
  JOIN dag_version_datasets n ON n.dag_version_id = m.dag_version_id
  JOIN dag_version_datasets f ON f.dag_version_id = m.former_version_id AND f.dataset_uuid = n.dataset_uuid
                             AND f.dataset_version <> n.dataset_version
  JOIN datasets d ON d.id = n.dataset_uuid
  LEFT JOIN unnest($2::uuid[], $3::jsonb[]) AS l (dataset_uuid, limits) ON l.dataset_uuid = n.dataset_uuid
 WHERE m.release_id = $1;

-- name: list_comparisons
-- The comparisons of a release, and what was found. `is_of_promotion`: made after its promotion was asked for.
-- With a user ($3 to $5, see `datasets_seen`), only of datasets that the user may see.
SELECT d.producer_dag_name AS dag,
       coalesce(d.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text) AS dataset,
       c.dataset_uuid, c.former_version AS former, c.dataset_version AS generation, c.state::text, c.limits,
       is_current(c) AS is_current,
       coalesce(r.when_ready AND c.taken_at >= coalesce(r.promotion_asked_at, r.ready_at), false) AS is_of_promotion,
       coalesce(c.requested_at < now() - $2::interval, false) AS is_late,
       c.steps, c.steps_planned, c.taken_at AS compared_at, c.result, c.error
  FROM release_comparisons c
  JOIN releases r ON r.id = c.release_id
  JOIN datasets d ON d.id = c.dataset_uuid
 WHERE c.release_id = $1
   AND ($3::uuid IS NULL OR EXISTS (SELECT FROM datasets_seen($3, $4::uuid, $5::text) s WHERE s.id = c.dataset_uuid))
 ORDER BY 1, 2;

-- name: request_comparisons
-- Requests the comparisons of a release that have not been made, failed, or were made of earlier commits.
UPDATE release_comparisons c
   SET state = 'Waiting', requested_at = now(), due_at = now(), attempts = 0, steps = 0, error = NULL
 WHERE c.release_id = $1 AND c.state IN ('Idle', 'Done', 'Failed') AND NOT is_current(c);

-- name: ask_promotion
-- A release that is ready is promoted when its limited datasets have been compared: those that were not since it was
-- asked for, but for those to which nothing was committed, are requested. How many.
WITH asked AS (
    UPDATE releases r
       SET when_ready = true, check_at = now() + $2::interval, message = NULL,
           promotion_asked_at = CASE WHEN r.when_ready THEN r.promotion_asked_at ELSE now() END
     WHERE r.id = $1 AND r.state = 'Ready'
    RETURNING r.id, coalesce(r.promotion_asked_at, r.ready_at) AS asked_at
), requested AS (
    UPDATE release_comparisons c
       SET state = 'Waiting', requested_at = now(), due_at = now(), attempts = 0, steps = 0, error = NULL
      FROM asked a
     WHERE c.release_id = a.id AND c.limits <> '{}' AND c.state IN ('Idle', 'Done', 'Failed') AND NOT is_current(c)
       AND (c.taken_at IS NULL OR c.taken_at < a.asked_at)
    RETURNING c.dataset_uuid
)
SELECT count(*) FROM requested;

-- name: next_comparison
-- The comparison that is due, locked, with what it is to compare. `is_late`: it has waited for longer than $1.
SELECT c.release_id, c.dataset_uuid, c.org_id,
       coalesce(d.name, d.producer_job_name || '[' || d.producer_output_index || ']', d.id::text) AS dataset,
       c.former_version, c.dataset_version, last_commit_of(c.dataset_uuid, c.former_version) AS former_commit,
       m.dag_version_id, c.requested_at < now() - $1::interval AS is_late, is_idle(r) AS is_idle
  FROM release_comparisons c
  JOIN releases r ON r.id = c.release_id
  JOIN datasets d ON d.id = c.dataset_uuid
  JOIN release_members m ON m.release_id = c.release_id AND m.dag_name = d.producer_dag_name
 WHERE c.state IN ('Waiting', 'Running') AND c.due_at <= now() AND r.state IN ('Building', 'Ready')
 ORDER BY c.due_at
 LIMIT 1
   FOR NO KEY UPDATE OF c SKIP LOCKED;

-- name: next_due
-- Seconds until a comparison is due, also one that is leased; NULL if none is requested.
SELECT extract(epoch FROM min(c.due_at) - clock_timestamp())::float8
  FROM release_comparisons c JOIN releases r ON r.id = c.release_id
 WHERE c.state IN ('Waiting', 'Running') AND r.state IN ('Building', 'Ready');

-- name: compare_later
-- A comparison waits for $3 more: the release has not processed yet what the serving versions have.
UPDATE release_comparisons SET due_at = now() + $3::interval WHERE release_id = $1 AND dataset_uuid = $2;

-- name: take_comparison
-- Leases a comparison for $4, of the commit $3 of side A and the last one of side B.
UPDATE release_comparisons c
   SET state = 'Running', lease_token = gen_random_uuid(), due_at = now() + $4::interval, taken_at = now(),
       attempts = c.attempts + 1, steps = 0, former_commit = $3,
       commit = last_commit_of(c.dataset_uuid, c.dataset_version)
 WHERE c.release_id = $1 AND c.dataset_uuid = $2
RETURNING c.lease_token, c.commit;

-- name: report_comparison
-- Stores progress ($4 of $5), a result ($6) or an error ($7, which a retry may help if $8) of a comparison whose lease the
-- caller holds ($3), and extends the lease by $9. Whether it holds it and the release may still be promoted.
WITH reported AS (
    UPDATE release_comparisons c
       SET state = CASE WHEN $6::jsonb IS NOT NULL THEN 'Done'
                        WHEN $7::text IS NULL THEN 'Running'
                        WHEN $8::boolean THEN 'Waiting'
                        ELSE 'Failed' END::comparison_state,
           steps = $4, steps_planned = $5, result = coalesce($6::jsonb, c.result),
           error = CASE WHEN $6::jsonb IS NULL THEN coalesce($7::text, c.error) END,
           lease_token = CASE WHEN $6::jsonb IS NULL AND $7::text IS NULL THEN c.lease_token END,
           due_at = now() + CASE WHEN $7::text IS NULL THEN $9::interval
                                 ELSE least(interval '1 second' * 2 ^ least(c.attempts, 10), interval '5 minutes') END
      FROM releases r
     WHERE r.id = c.release_id AND r.state IN ('Building', 'Ready')
       AND c.release_id = $1 AND c.dataset_uuid = $2 AND c.state = 'Running' AND c.lease_token = $3
    RETURNING c.release_id, c.state
), looked_at AS (
    UPDATE releases r SET check_at = now()
      FROM reported p WHERE r.id = p.release_id AND p.state <> 'Running' AND r.when_ready
)
SELECT EXISTS (SELECT FROM reported);

-- name: find_key_facts
-- What decides by which columns rows of a dataset ($1) are compared: of the job that makes it, in the active version of
-- its DAG, or in $2.
SELECT j.unique_key, j.operator, j.config, d.producer_output_index AS output_index
  FROM datasets d
  JOIN jobs j ON j.name = d.producer_job_name
   AND j.dag_version_id = coalesce($2::uuid, (SELECT c.dag_version_id FROM dag_current_versions c
                                               WHERE c.org_id = d.org_id AND c.dag_name = d.producer_dag_name))
 WHERE d.id = $1;
