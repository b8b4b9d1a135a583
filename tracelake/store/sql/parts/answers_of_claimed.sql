-- What a claim is answered with: a row for each `claimed`, with its inputs as they were `pinned`.
SELECT c.n, c.id AS task_id, c.org_id, c.job_id, c.status::text, c.attempt, c.lease_token, c.lease_expires_at, c.timeout_seconds,
       c.input_versions::text AS trigger, c.invalidation_id,
       (SELECT jsonb_agg(jsonb_build_object(
            'dataset_uuid', p.dataset_uuid, 'dataset_version', p.version, 'commit', p.last_commit, 'name', p.name, 'alias', p.alias,
            'storage_location', p.storage_location, 'where', p.where_tree, 'follows', p.triggers) ORDER BY p.position)
          FROM pinned p WHERE p.task_id = c.id)::text AS inputs,
       (SELECT s.state FROM operator_state s
         WHERE s.org_id = c.org_id AND s.job_id = c.job_id AND s.state_key = 'default')::text AS state,
       c.bootstrap::text,
       (SELECT jsonb_object_agg(d.id, d.name) FROM datasets d WHERE d.id = ANY (c.output_datasets))::text AS names
  FROM claimed c;
