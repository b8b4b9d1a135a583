-- Files that a task wrote are used for another task that would write the same: memo_key and memoized_from get their writers.

ALTER TABLE jobs ADD COLUMN memo_hash text;
COMMENT ON COLUMN jobs.memo_hash IS
    'The SHA-256 of what decides, beside the rows that they read, what tasks of this job write; NULL: their outputs are not used again.';
CREATE INDEX idx_jobs_memo ON jobs (org_id, memo_hash) WHERE memo_hash IS NOT NULL;
COMMENT ON INDEX idx_jobs_memo IS 'Jobs whose tasks may have written what a task of another one would write.';

ALTER TABLE dataset_versions ADD COLUMN shares_files boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN dataset_versions.shares_files IS
    'Partitions of it lie in folders of other generations of the dataset: its readers may read those too.';

CREATE INDEX idx_partition_versions_location ON partition_versions (location) WHERE files_removed_at IS NULL;
COMMENT ON INDEX idx_partition_versions_location IS 'The partitions whose files are in a folder: none of them is deleted.';

-- A task that uses files of another one is claimed and completed by the Dispatcher: it has an attempt and a fence.
ALTER TABLE tasks
    DROP CONSTRAINT tasks_completed_ran_or_was_memoised,
    ADD CONSTRAINT tasks_completed_was_leased CHECK (status <> 'Completed' OR lease_token IS NOT NULL),
    ADD CONSTRAINT tasks_memoized_has_a_key CHECK (memoized_from IS NULL OR memo_key IS NOT NULL);
COMMENT ON COLUMN tasks.memo_key IS
    'SHA-256 of what decided the outputs: the job''s memo_hash, the operator''s code, the scope, and the content of what was read.';
COMMENT ON COLUMN tasks.memoized_from IS 'The completed task whose files this one uses instead of running.';
COMMENT ON INDEX idx_tasks_memo IS 'Completed tasks that wrote what a task with the same key would write.';

CREATE FUNCTION content_read(version uuid, at_commit bigint, span int8range, label text) RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN count(*) BETWEEN 1 AND 1000 AND bool_and(p.content_hash IS NOT NULL)
            THEN sha256(string_agg(convert_to(p.partition_key, 'UTF8') || '\x00'::bytea || p.content_hash, ''::bytea
                                   ORDER BY p.partition_key COLLATE "C")) END
  FROM ((SELECT r.partition_key, r.content_hash
           FROM partition_versions r
          WHERE span IS NOT NULL AND r.block_range IS NOT NULL AND r.block_range && span
            AND uuid_span(r.dataset_version, r.dataset_version, '[]') && uuid_span(version, version, '[]')
            AND r.commits @> at_commit
          LIMIT 1001)
        UNION ALL
        (SELECT r.partition_key, r.content_hash
           FROM partition_versions r
          WHERE span IS NULL AND label IS NOT NULL AND r.dataset_version = version AND r.partition_key = label
            AND r.commits @> at_commit)
        UNION ALL
        (SELECT r.partition_key, r.content_hash
           FROM partition_versions r
          WHERE span IS NULL AND label IS NULL AND r.dataset_version = version AND r.commits @> at_commit
          LIMIT 1001)) p
$$;
COMMENT ON FUNCTION content_read IS
    'The SHA-256 of keys and contents of the partitions of a generation at a commit: those that overlap a range, one label, or all. NULL: there are none, more than 1000, or one has no known content.';

CREATE FUNCTION memo_key(task uuid, codes jsonb) RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN r.known AND (j.makes_whole OR s.key IS NOT NULL)
            THEN sha256(convert_to(jsonb_build_array(j.memo_hash, codes -> j.operator, s.key, s.span, r.contents)::text, 'UTF8')) END
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.memo_hash IS NOT NULL
 CROSS JOIN LATERAL (
     SELECT CASE WHEN NOT j.makes_whole THEN t.input_versions ->> 'partition_key' END AS key,
            CASE WHEN NOT j.makes_whole AND t.input_versions ? 'start'
                 THEN int8range((t.input_versions ->> 'start')::bigint, (t.input_versions ->> 'end')::bigint, '[]') END AS span) s
 CROSS JOIN LATERAL (
     SELECT bool_and(c.content IS NOT NULL) AS known,
            jsonb_agg(jsonb_build_array(i.dataset_uuid::text = t.input_versions ->> 'dataset_uuid', encode(c.content, 'hex'))
                      ORDER BY i.position) AS contents
       FROM job_inputs i
       JOIN datasets d ON d.id = i.dataset_uuid
       LEFT JOIN task_inputs p ON p.task_id = t.id AND p.attempt = t.attempt AND p.input_dataset_uuid = i.dataset_uuid
       LEFT JOIN dag_version_datasets served
              ON p.task_id IS NULL AND served.dataset_uuid = i.dataset_uuid
             AND served.dag_version_id = version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name)
       LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
      CROSS JOIN LATERAL (
          SELECT content_read(coalesce(p.input_dataset_version, served.dataset_version),
                              CASE WHEN p.task_id IS NULL THEN h.last_commit ELSE p.input_commit END,
                              CASE WHEN i.triggers THEN s.span END, CASE WHEN i.triggers THEN s.key END) AS content) c
      WHERE i.job_id = j.id) r
 WHERE t.id = task
$$;
COMMENT ON FUNCTION memo_key IS
    'The memo key of a task: of what its attempt has pinned or, before its claim, would pin now. NULL: its outputs are not used again. codes: the version of each operator''s code.';

CREATE OR REPLACE VIEW described_tasks AS
SELECT t.id AS task_id, t.org_id, t.job_id, t.status::text, t.attempt, t.lease_token, t.lease_expires_at, t.timeout_seconds,
       t.input_versions::text AS trigger, t.invalidation_id,
       CASE WHEN j.bootstrapped_at IS NULL THEN j.bootstrap END::text AS bootstrap,
       (SELECT jsonb_agg(input_ref(i.dataset_uuid, v.id, CASE WHEN r.task_id IS NULL THEN h.last_commit ELSE r.input_commit END,
                                   d.name, i.name, v.storage_location, i.where_tree, i.triggers)
                         || jsonb_build_object('shares_files', v.shares_files) ORDER BY i.position)
          FROM job_inputs i
          JOIN datasets d ON d.id = i.dataset_uuid
          LEFT JOIN task_inputs r ON r.task_id = t.id AND r.attempt = t.attempt AND r.input_dataset_uuid = i.dataset_uuid
          LEFT JOIN dag_version_datasets served
                 ON served.dag_version_id = version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name)
                AND served.dataset_uuid = i.dataset_uuid
          JOIN dataset_versions v ON v.id = coalesce(r.input_dataset_version, served.dataset_version)
          LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
         WHERE i.job_id = t.job_id)::text AS inputs,
       (SELECT s.state FROM operator_state s
         WHERE s.org_id = t.org_id AND s.job_id = t.job_id AND s.state_key = 'default')::text AS state,
       (SELECT jsonb_object_agg(d.id, d.name) FROM datasets d WHERE d.id = ANY (j.output_datasets))::text AS names
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id;
