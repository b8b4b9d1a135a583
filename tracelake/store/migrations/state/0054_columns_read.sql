-- Jobs that read only some columns of an input use files again when others of its columns have changed.

ALTER TABLE partition_versions
    ADD COLUMN column_hashes jsonb,
    ADD CONSTRAINT partition_versions_column_hashes_is_a_map CHECK (jsonb_typeof(column_hashes) = 'object');
COMMENT ON COLUMN partition_versions.column_hashes IS
    'A hash of each column of its files, by its name in small letters: equal hashes, equal values in the same order; NULL: not known.';

ALTER TABLE job_inputs ADD COLUMN columns_read text[];
COMMENT ON COLUMN job_inputs.columns_read IS
    'The only columns of the input that can decide what the job writes, in small letters, whether the input has them or not; NULL: any may.';

CREATE FUNCTION content_in(columns text[], content_hash bytea, column_hashes jsonb, row_count bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN columns IS NULL OR content_hash IS NULL OR column_hashes IS NULL OR row_count IS NULL THEN content_hash
            ELSE sha256(convert_to(jsonb_build_array('columns', row_count, (
                     SELECT jsonb_agg(jsonb_build_array(c.name, column_hashes -> c.name) ORDER BY c.name COLLATE "C")
                       FROM unnest(columns) AS c (name)))::text, 'UTF8')) END;
COMMENT ON FUNCTION content_in IS
    'What a partition holds in some columns: its number of rows and the hashes of these columns, those that it lacks included. Without a list of columns, or without their hashes, all that it holds.';

DROP FUNCTION content_read(uuid, bigint, int8range, text);
CREATE FUNCTION content_read(version uuid, at_commit bigint, span int8range, label text, columns text[] DEFAULT NULL)
RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN count(*) BETWEEN 1 AND 1000 AND bool_and(p.content IS NOT NULL)
            THEN sha256(string_agg(convert_to(p.partition_key, 'UTF8') || '\x00'::bytea || p.content, ''::bytea
                                   ORDER BY p.partition_key COLLATE "C")) END
  FROM ((SELECT r.partition_key, content_in(columns, r.content_hash, r.column_hashes, r.row_count) AS content
           FROM partition_versions r
          WHERE span IS NOT NULL AND r.block_range IS NOT NULL AND r.block_range && span
            AND uuid_span(r.dataset_version, r.dataset_version, '[]') && uuid_span(version, version, '[]')
            AND r.commits @> at_commit
          LIMIT 1001)
        UNION ALL
        (SELECT r.partition_key, content_in(columns, r.content_hash, r.column_hashes, r.row_count)
           FROM partition_versions r
          WHERE span IS NULL AND label IS NOT NULL AND r.dataset_version = version AND r.partition_key = label
            AND r.commits @> at_commit)
        UNION ALL
        (SELECT r.partition_key, content_in(columns, r.content_hash, r.column_hashes, r.row_count)
           FROM partition_versions r
          WHERE span IS NULL AND label IS NULL AND r.dataset_version = version AND r.commits @> at_commit
          LIMIT 1001)) p
$$;
COMMENT ON FUNCTION content_read IS
    'The SHA-256 of keys and contents of the partitions of a generation at a commit, in these columns or all: those that overlap a range, one label, or all. NULL: there are none, more than 1000, or one has no known content.';

DROP FUNCTION memo_key(uuid, jsonb);
CREATE FUNCTION memo_key(task uuid, codes jsonb, of_all_columns boolean DEFAULT false) RETURNS bytea
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
                              CASE WHEN i.triggers THEN s.span END, CASE WHEN i.triggers THEN s.key END,
                              CASE WHEN NOT of_all_columns THEN i.columns_read END) AS content) c
      WHERE i.job_id = j.id) r
 WHERE t.id = task
$$;
COMMENT ON FUNCTION memo_key IS
    'The memo key of a task: of what its attempt has pinned or, before its claim, would pin now, in the columns that its job reads, or in all. NULL: its outputs are not used again. codes: the version of each operator''s code.';
