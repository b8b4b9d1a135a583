-- What several statements repeated: how a task is described to its worker, and what it is triggered by.

CREATE FUNCTION trigger_of(
    dataset_uuid uuid, dataset_version uuid, cursor_value bigint, partition_key text, block_range int8range,
    commit_number bigint
) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_strip_nulls(jsonb_build_object(
    'dataset_uuid', dataset_uuid, 'dataset_version', dataset_version, 'cursor', cursor_value,
    'partition_key', partition_key, 'start', lower(block_range), 'end', upper(block_range) - 1, 'commit', commit_number));
COMMENT ON FUNCTION trigger_of IS
    'What a task is created for (`tasks.input_versions`): an update of a dataset, or a range of it to be processed again.';

CREATE VIEW described_tasks AS
SELECT t.id AS task_id, t.org_id, t.job_id, t.status::text, t.attempt, t.lease_token, t.lease_expires_at, t.timeout_seconds,
       t.input_versions::text AS trigger, t.invalidation_id,
       CASE WHEN j.bootstrapped_at IS NULL THEN j.bootstrap END::text AS bootstrap,
       (SELECT jsonb_agg(input_ref(i.dataset_uuid, v.id, CASE WHEN r.task_id IS NULL THEN h.last_commit ELSE r.input_commit END,
                                   d.name, i.name, v.storage_location, i.where_tree, i.triggers) ORDER BY i.position)
          FROM job_inputs i
          JOIN datasets d ON d.id = i.dataset_uuid
          LEFT JOIN task_inputs r ON r.task_id = t.id AND r.attempt = t.attempt AND r.input_dataset_uuid = i.dataset_uuid
          LEFT JOIN dag_current_versions other
                 ON other.org_id = d.org_id AND other.dag_name = d.producer_dag_name AND d.producer_dag_name <> j.dag_name
          LEFT JOIN dag_version_datasets served
                 ON served.dag_version_id = coalesce(other.dag_version_id, j.dag_version_id)
                AND served.dataset_uuid = i.dataset_uuid
          JOIN dataset_versions v ON v.id = coalesce(r.input_dataset_version, served.dataset_version)
          LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
         WHERE i.job_id = t.job_id)::text AS inputs,
       (SELECT s.state FROM operator_state s
         WHERE s.org_id = t.org_id AND s.job_id = t.job_id AND s.state_key = 'default')::text AS state,
       (SELECT jsonb_object_agg(d.id, d.name) FROM datasets d WHERE d.id = ANY (j.output_datasets))::text AS names
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id;
COMMENT ON VIEW described_tasks IS
    'Tasks as a claim describes them. Inputs are as the attempt has pinned them, or as a claim would pin them now.';
