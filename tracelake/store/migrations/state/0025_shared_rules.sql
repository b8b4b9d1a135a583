-- Rules that several statements apply, each written once. The planner inlines all of them but `is_remade`.

CREATE FUNCTION holds_lease(task tasks, of_attempt integer, token uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN (task).attempt = of_attempt AND (task).lease_token = token;
COMMENT ON FUNCTION holds_lease IS
    'The fence: whether this attempt with this lease token is the task''s current one. Every write of an attempt asks it.';

CREATE FUNCTION awaits_completion(task tasks) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN (task).status = 'Running' OR ((task).status = 'Failed' AND (task).completion_hash IS NULL);
COMMENT ON FUNCTION awaits_completion IS
    'Whether the current attempt may still report: it runs, or its lease expired and no newer attempt has begun.';

-- By key and by range, each by its own index: with an OR no index fits, and all partitions would be read.
CREATE FUNCTION is_remade(version uuid, key text, range int8range, number bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT EXISTS (
           SELECT FROM partition_versions p
            WHERE p.dataset_version = version AND p.partition_key = key AND p.valid_from < number)
    OR EXISTS (
           SELECT FROM partition_versions p
            WHERE p.block_range IS NOT NULL AND p.block_range && range
              AND uuid_span(p.dataset_version, p.dataset_version, '[]') && uuid_span(version, version, '[]')
              AND p.valid_from < number)
$$;
COMMENT ON FUNCTION is_remade IS 'Whether an earlier commit than this one wrote the partition, or one that overlaps it.';

CREATE FUNCTION event_task_key(
    kind event_kind, dataset_uuid uuid, dataset_version uuid, cursor_value bigint, partition_key text,
    block_range int8range, commit_number bigint
) RETURNS text
LANGUAGE sql STABLE
RETURN CASE kind
           WHEN 'cursor' THEN concat_ws(':', 'cursor', dataset_uuid, dataset_version, cursor_value)
           WHEN 'partition' THEN concat_ws(':', 'partition', dataset_uuid, dataset_version, partition_key)
           ELSE concat_ws(':', 'whole', dataset_uuid, dataset_version)
       END
       || CASE WHEN commit_number IS NULL THEN ''
               WHEN kind = 'update' OR is_remade(dataset_version, partition_key, block_range, commit_number)
                   THEN ':commit:' || commit_number
               ELSE '' END;
COMMENT ON FUNCTION event_task_key IS
    'What tells the task for an event from other tasks of its job. A partition that is made again is another unit of work.';

CREATE FUNCTION input_ref(
    dataset_uuid uuid, dataset_version uuid, last_commit bigint, name text, alias text, storage_location text,
    where_tree jsonb, follows boolean
) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_build_object(
    'dataset_uuid', dataset_uuid, 'dataset_version', dataset_version, 'commit', last_commit, 'name', name, 'alias', alias,
    'storage_location', storage_location, 'where', where_tree, 'follows', follows);
COMMENT ON FUNCTION input_ref IS 'An input of a task as claims and fetches answer it.';

CREATE FUNCTION replaced_partitions(version uuid, keys text[], starts bigint[], stops bigint[])
RETURNS TABLE (partition_key text, valid_from bigint)
LANGUAGE sql STABLE AS $$
SELECT p.partition_key, p.valid_from
  FROM partition_versions p
 WHERE p.dataset_version = version AND p.valid_to IS NULL AND p.partition_key = ANY (keys)
 UNION
SELECT p.partition_key, p.valid_from
  FROM unnest(starts, stops) AS n (start, stop)
  JOIN partition_versions p
    ON uuid_span(p.dataset_version, p.dataset_version, '[]') && uuid_span(version, version, '[]')
   AND p.block_range IS NOT NULL AND p.block_range && int8range(n.start, n.stop)
   AND p.commits @> 9223372036854775807 AND p.valid_to IS NULL -- the same twice: the first by the index
 WHERE n.start IS NOT NULL
$$;
COMMENT ON FUNCTION replaced_partitions IS
    'Current partitions of a generation with one of these keys, or that overlap one of these ranges.';

CREATE VIEW triggered_jobs AS
SELECT i.dataset_uuid, j.org_id, j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime
  FROM job_inputs i
  JOIN jobs j ON j.id = i.job_id
 WHERE i.live AND i.triggers AND j.activation = 'reactive';
COMMENT ON VIEW triggered_jobs IS
    'Jobs of active versions that an update of a dataset triggers; a job is there once for each input that names it.';

CREATE VIEW dead_sources AS
SELECT s.job_id,
       s.state_since + make_interval(secs => greatest(0,
           least(j.retry_backoff_seconds * 2.0 ^ least(s.restarts, 30), j.retry_backoff_max_seconds)
           - coalesce(extract(epoch FROM t.last_heartbeat - t.started_at), 0))) AS due
  FROM sources s
  JOIN jobs j ON j.id = s.job_id
  LEFT JOIN tasks t ON t.id = s.task_id
 WHERE s.state = 'Dead';
COMMENT ON VIEW dead_sources IS
    'Sources that ended, and when each may start again: the wait doubles with each restart, and the time it ran counts.';
