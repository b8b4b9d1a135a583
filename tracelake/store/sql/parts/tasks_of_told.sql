-- From events (`told`) to tasks for their readers, once each (`made`).
), wanted AS (
    SELECT DISTINCT ON (e.id, j.id)
           e.id AS event_id, e.org_id, e.dataset_uuid, e.dataset_version, e.kind, e.cursor_value, e.partition_key,
           lower(e.block_range) AS range_start, upper(e.block_range) - 1 AS range_end, e.commit_number,
           j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime,
-- part: key_of_event
           AS dedupe_key
      FROM told e
      JOIN job_inputs i ON i.dataset_uuid = e.dataset_uuid AND i.live AND i.triggers
      JOIN jobs j ON j.id = i.job_id AND j.org_id = e.org_id AND j.activation = 'reactive'
     WHERE e.is_served
       AND (e.jobs IS NULL OR e.jobs ? j.id::text) -- routed again for those who missed it, and for nobody else
), made AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id,
           CASE WHEN partition_key IS NOT NULL THEN ARRAY[partition_key] END,
           jsonb_strip_nulls(jsonb_build_object(
               'dataset_uuid', dataset_uuid, 'dataset_version', dataset_version, 'cursor', cursor_value,
               'partition_key', partition_key, 'start', range_start, 'end', range_end, 'commit', commit_number)),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM wanted
     ORDER BY job_id, dedupe_key -- two who make the same ones at once do so in the same order: neither waits for ever
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, woken_at
