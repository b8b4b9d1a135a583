-- Jobs with `execution_strategy: PerPartition` get a task for each changed partition, also of updates of the whole dataset.

CREATE FUNCTION splits_updates(job uuid, generation uuid) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT EXISTS (SELECT FROM jobs j WHERE j.id = job AND j.execution_strategy = 'PerPartition' AND NOT j.makes_whole)
   AND EXISTS (SELECT FROM partition_versions p WHERE p.dataset_version = generation AND p.valid_to IS NULL)
$$;
COMMENT ON FUNCTION splits_updates IS
    'Whether a job gets no task for an update of a whole generation or a cursor, but one for each partition that it has not processed: it is PerPartition, and the generation has partitions.';

ALTER TABLE catch_ups ADD COLUMN again boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN catch_ups.again IS 'An update came while the pass was under way: the next pass begins as soon as this one ends.';

CREATE FUNCTION reads_whole(job uuid, lineage uuid, generation uuid, OUT splits boolean, OUT read_up_to bigint)
LANGUAGE sql STABLE AS $$
SELECT splits_updates(job, generation), p.commit_number
  FROM (SELECT) one
  LEFT JOIN processed_inputs p
         ON p.lineage_id = lineage AND p.dataset_version = generation AND p.partition_key = '' AND NOT p.again
$$;
COMMENT ON FUNCTION reads_whole IS
    'What a job does with updates of a whole generation: whether it splits them into partitions, and the commit up to which it has read all.';

CREATE FUNCTION is_part_of_update(dataset uuid, generation uuid, commit_number bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT EXISTS (
    SELECT FROM commits c
      JOIN events e ON e.producer_run_id = c.task_id AND e.dataset_uuid = dataset AND e.dataset_version = generation
     WHERE c.dataset_uuid = dataset AND c.number = is_part_of_update.commit_number
       AND e.kind <> 'partition' AND e.commit_number = c.number)
$$;
COMMENT ON FUNCTION is_part_of_update IS
    'Whether a commit was announced by one event about the whole generation, or a cursor: its partitions are no updates of their own.';
