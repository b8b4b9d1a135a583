-- Whether a job has processed an event, in whichever version of its DAG.

CREATE FUNCTION has_processed(
    job uuid, generation uuid, partition_key text, cursor_value bigint, commit_number bigint, happened_at timestamptz
) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT EXISTS (
    SELECT FROM jobs j
      JOIN processed_inputs p
        ON p.lineage_id = j.lineage_id AND p.dataset_version = generation AND NOT p.again
       AND p.partition_key = CASE WHEN j.makes_whole THEN ''
                                  ELSE processed_key(has_processed.partition_key, has_processed.cursor_value,
                                                     has_processed.commit_number) END
     WHERE j.id = job
       AND CASE WHEN has_processed.commit_number IS NOT NULL THEN p.commit_number >= has_processed.commit_number
                -- A task of a later cursor has not read what an earlier one is about.
                ELSE (j.makes_whole OR has_processed.partition_key IS NOT NULL) AND p.read_at >= happened_at END)
$$;
COMMENT ON FUNCTION has_processed IS
    'Whether a job of this lineage has processed an event: its partition at this commit or a later one, or all that was there after the event happened.';
