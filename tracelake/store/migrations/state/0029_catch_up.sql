-- What each job has processed of its inputs, whichever version of its DAG ran it; and how far each job has been compared
-- with what its inputs hold.

CREATE FUNCTION job_lineage(
    version uuid, dag_name text, job_name text, outputs uuid[], config_hash text
) RETURNS uuid
LANGUAGE sql STABLE AS $$
SELECT md5(concat_ws('/', 'job', v.org_id, dag_name, job_name, coalesce(
           (SELECT string_agg(concat_ws(':', o.dataset_uuid, p.dataset_version), ',' ORDER BY o.n)
              FROM unnest(outputs) WITH ORDINALITY AS o (dataset_uuid, n)
              LEFT JOIN dag_version_datasets p ON p.dag_version_id = version AND p.dataset_uuid = o.dataset_uuid),
           config_hash)))::uuid
  FROM dag_versions v
 WHERE v.id = version
$$;
COMMENT ON FUNCTION job_lineage IS
    'Identifies a job by its name and the generations that it writes, or by its configuration if it writes none: jobs of two versions with one lineage are the same work.';

ALTER TABLE jobs
    ADD COLUMN lineage_id uuid,
    ADD COLUMN replay boolean NOT NULL DEFAULT false,
    ADD COLUMN takes_history boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN jobs.lineage_id IS 'Equal for jobs of two versions that write the same generations: what one has processed, the other has.';
COMMENT ON COLUMN jobs.replay IS 'Effects outside its own generations are repeated for data that was there before the version was activated.';
COMMENT ON COLUMN jobs.takes_history IS
    'False: it has effects outside its own generations and does not say `replay`, so it gets no task for data that was there before.';

CREATE FUNCTION describe_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lineage_id := job_lineage(NEW.dag_version_id, NEW.dag_name, NEW.name, NEW.output_datasets, NEW.config_hash);
    NEW.takes_history := NEW.replay OR NOT (NEW.output_datasets = '{}' OR EXISTS (
        SELECT FROM datasets d WHERE d.id = ANY (NEW.output_datasets) AND d.producer_job_name IS NULL));
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION describe_job IS 'Derives a job''s lineage, and whether it takes data that was there before, when the job is inserted.';
UPDATE jobs j
   SET lineage_id = job_lineage(j.dag_version_id, j.dag_name, j.name, j.output_datasets, j.config_hash),
       takes_history = NOT (j.output_datasets = '{}' OR EXISTS (
           SELECT FROM datasets d WHERE d.id = ANY (j.output_datasets) AND d.producer_job_name IS NULL));
ALTER TABLE jobs ALTER COLUMN lineage_id SET NOT NULL;
CREATE TRIGGER jobs_described BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION describe_job();
CREATE INDEX idx_jobs_lineage ON jobs (lineage_id);
COMMENT ON INDEX idx_jobs_lineage IS 'The jobs of all versions that are the same work.';

ALTER TABLE tasks ADD COLUMN history boolean NOT NULL DEFAULT false;
ALTER TABLE events ADD COLUMN history boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tasks.history IS 'Created to catch up with data that was there before, or by an event of such a task.';
COMMENT ON COLUMN events.history IS 'Of a task that caught up: jobs with effects outside their own generations do not run for it.';

CREATE OR REPLACE VIEW triggered_jobs AS
SELECT i.dataset_uuid, j.org_id, j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime,
       j.takes_history
  FROM job_inputs i
  JOIN jobs j ON j.id = i.job_id
 WHERE i.live AND i.triggers AND j.activation = 'reactive';

CREATE TABLE processed_inputs (
    -- No foreign keys: a row is written with every completion.
    lineage_id uuid NOT NULL,
    dataset_version uuid NOT NULL,
    partition_key text NOT NULL,
    commit_number bigint,
    cursor_value bigint,
    read_at timestamptz NOT NULL,
    task_id uuid NOT NULL,
    again boolean NOT NULL DEFAULT false,
    PRIMARY KEY (lineage_id, dataset_version, partition_key),
    CONSTRAINT processed_inputs_commit_from_one CHECK (commit_number >= 1),
    CONSTRAINT processed_inputs_cursor_from_zero CHECK (cursor_value >= 0)
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000
);
COMMENT ON TABLE processed_inputs IS
    'What a job has processed of each generation of its inputs, one row for each partition: an input''s current partitions without these are what the job lacks.';
COMMENT ON COLUMN processed_inputs.lineage_id IS 'Of the job (`jobs.lineage_id`): versions that share a generation share these rows.';
COMMENT ON COLUMN processed_inputs.dataset_version IS 'The generation of the input.';
COMMENT ON COLUMN processed_inputs.partition_key IS
    'The partition; `cursor:N` for one publish of a buffered dataset; empty: all up to the cursor or commit.';
COMMENT ON COLUMN processed_inputs.commit_number IS 'The last commit of the partition that was processed; NULL: its events name none.';
COMMENT ON COLUMN processed_inputs.cursor_value IS 'The highest cursor that was processed.';
COMMENT ON COLUMN processed_inputs.read_at IS 'When the attempt was claimed, which pins what it reads.';
COMMENT ON COLUMN processed_inputs.task_id IS 'The task that processed it last.';
COMMENT ON COLUMN processed_inputs.again IS 'To be processed again.';

CREATE FUNCTION processed_key(partition_key text, cursor_value bigint, commit_number bigint) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN coalesce(partition_key,
                CASE WHEN cursor_value IS NOT NULL AND commit_number IS NOT NULL THEN 'cursor:' || cursor_value ELSE '' END);
COMMENT ON FUNCTION processed_key IS
    'The key of what a task has processed: its partition; one publish of a buffered dataset (a cursor with a commit); or empty.';

INSERT INTO processed_inputs (lineage_id, dataset_version, partition_key, commit_number, cursor_value, read_at, task_id)
SELECT j.lineage_id, r.dataset_version, r.partition_key, max(r.commit_number), max(r.cursor_value), max(t.started_at),
       (array_agg(t.id ORDER BY t.started_at DESC, t.id))[1]
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  CROSS JOIN LATERAL (
      SELECT (t.input_versions ->> 'dataset_version')::uuid AS dataset_version,
             processed_key(t.input_versions ->> 'partition_key', (t.input_versions ->> 'cursor')::bigint,
                           (t.input_versions ->> 'commit')::bigint) AS partition_key,
             (t.input_versions ->> 'commit')::bigint AS commit_number, (t.input_versions ->> 'cursor')::bigint AS cursor_value
       WHERE NOT j.makes_whole AND t.invalidation_id IS NULL
      UNION ALL
      SELECT i.input_dataset_version, '', i.input_commit, NULL
        FROM task_inputs i WHERE j.makes_whole AND i.task_id = t.id AND i.attempt = t.attempt) r
 WHERE t.status = 'Completed' AND t.started_at IS NOT NULL AND r.dataset_version IS NOT NULL
 GROUP BY 1, 2, 3;

-- What it held is in `processed_inputs`.
DROP TABLE dataset_cursors;

-- A task that was canceled because its version left gives up its key: the work may be needed again when the version returns.
UPDATE tasks SET dedupe_key = dedupe_key || ':canceled:' || id
 WHERE status = 'Canceled' AND dedupe_key IS NOT NULL AND cancel_reason = 'another version of the DAG was activated';

CREATE VIEW job_reads AS
SELECT DISTINCT j.id AS job_id, j.org_id, j.dag_name, j.name AS job_name, j.lineage_id, j.makes_whole, j.takes_history,
       j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime, i.dataset_uuid, served.dataset_version
  FROM jobs j
  JOIN job_inputs i ON i.job_id = j.id AND i.triggers
  JOIN datasets d ON d.id = i.dataset_uuid
  LEFT JOIN dag_current_versions other
         ON other.org_id = d.org_id AND other.dag_name = d.producer_dag_name AND d.producer_dag_name <> j.dag_name
  JOIN dag_version_datasets served
         ON served.dag_version_id = coalesce(other.dag_version_id, j.dag_version_id)
        AND served.dataset_uuid = i.dataset_uuid
 WHERE j.activation = 'reactive';
COMMENT ON VIEW job_reads IS
    'The generation that a job reads of each input that triggers it: of its own version within its DAG, else the current one.';

CREATE TABLE catch_ups (
    job_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    org_id uuid NOT NULL,
    due_at timestamptz NOT NULL DEFAULT now(),
    requested_at timestamptz NOT NULL DEFAULT now(),
    stage text NOT NULL DEFAULT 'partitions',
    after_start bigint NOT NULL DEFAULT -2,
    after_key text NOT NULL DEFAULT '',
    after_time timestamptz NOT NULL DEFAULT '-infinity',
    after_event uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    tasks bigint NOT NULL DEFAULT 0,
    walked_at timestamptz,
    PRIMARY KEY (job_id, dataset_uuid),
    CONSTRAINT catch_ups_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT catch_ups_dataset_of_same_org FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id),
    CONSTRAINT catch_ups_stage_is_known CHECK (stage IN ('partitions', 'events')),
    CONSTRAINT catch_ups_tasks_are_not_negative CHECK (tasks >= 0)
);
COMMENT ON TABLE catch_ups IS
    'An input of a job of an active version, and when it is next compared with what the job has processed; a pass is made in batches.';
COMMENT ON COLUMN catch_ups.due_at IS 'When the next batch may begin.';
COMMENT ON COLUMN catch_ups.requested_at IS 'When the version was activated; a pass that began soon after is repeated once, for transactions that overlapped.';
COMMENT ON COLUMN catch_ups.stage IS 'Whether the pass is at the partitions of the input, or at its events that no partition shows.';
COMMENT ON COLUMN catch_ups.after_start IS 'The last partition of the pass so far: its first block, or -1.';
COMMENT ON COLUMN catch_ups.after_key IS 'The last partition of the pass so far: its key.';
COMMENT ON COLUMN catch_ups.after_time IS 'The last event of the pass so far: when it was created.';
COMMENT ON COLUMN catch_ups.after_event IS 'The last event of the pass so far.';
COMMENT ON COLUMN catch_ups.tasks IS 'How many tasks passes have created for this input.';
COMMENT ON COLUMN catch_ups.walked_at IS 'When the last pass ended; NULL: the first has not.';
CREATE INDEX idx_catch_ups_due ON catch_ups (due_at);
COMMENT ON INDEX idx_catch_ups_due IS 'Which input is compared next.';

CREATE INDEX idx_partition_versions_order ON partition_versions
    (dataset_version, (coalesce(lower(block_range), -1)), partition_key) WHERE valid_to IS NULL;
COMMENT ON INDEX idx_partition_versions_order IS 'The current partitions of a generation in the order of their blocks.';
CREATE INDEX idx_partition_versions_ended ON partition_versions (dataset_version) WHERE valid_to IS NOT NULL;
COMMENT ON INDEX idx_partition_versions_ended IS 'Whether a partition of a generation was ever replaced.';

-- Every active version is compared once after this migration.
INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
SELECT DISTINCT j.id, i.dataset_uuid, j.org_id
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.activation = 'reactive' AND j.takes_history
  JOIN job_inputs i ON i.job_id = j.id AND i.triggers
ON CONFLICT DO NOTHING;
