-- Jobs that read only the rows of listed contracts use files again of ranges in which no other listed contract has rows.

ALTER TABLE partition_versions
    ADD COLUMN addresses bytea,
    ADD CONSTRAINT partition_versions_addresses_is_a_summary
        CHECK (length(addresses) BETWEEN 1 AND 2048 AND length(addresses) & (length(addresses) - 1) = 0);
COMMENT ON COLUMN partition_versions.addresses IS
    'A Bloom filter of the values of its column `address`; NULL: not known, or it has no such column.';

ALTER TABLE jobs ADD COLUMN addresses bytea[];
COMMENT ON COLUMN jobs.addresses IS
    'The addresses that its config lists: memo_hash does not cover them, and the memo key of a task only those that it may read. NULL: it has no such list.';

CREATE FUNCTION may_hold(summary bytea, address bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN (SELECT bool_and(get_bit(summary, (get_byte(h.hash, 2 * n) * 256 + get_byte(h.hash, 2 * n + 1)) % (8 * length(summary))) = 1)
          FROM (SELECT sha256(address)) AS h (hash), generate_series(0, 3) n);
COMMENT ON FUNCTION may_hold IS
    'Whether a value may be one of those that a Bloom filter was made of: never false for one of them.';

CREATE FUNCTION partitions_read(version uuid, at_commit bigint, span int8range, label text)
RETURNS TABLE (partition_key text, content_hash bytea, column_hashes jsonb, row_count bigint, addresses bytea)
LANGUAGE sql STABLE AS $$
(SELECT r.partition_key, r.content_hash, r.column_hashes, r.row_count, r.addresses
   FROM partition_versions r
  WHERE span IS NOT NULL AND r.block_range IS NOT NULL AND r.block_range && span
    AND uuid_span(r.dataset_version, r.dataset_version, '[]') && uuid_span(version, version, '[]')
    AND r.commits @> at_commit
  LIMIT 1001)
UNION ALL
(SELECT r.partition_key, r.content_hash, r.column_hashes, r.row_count, r.addresses
   FROM partition_versions r
  WHERE span IS NULL AND label IS NOT NULL AND r.dataset_version = version AND r.partition_key = label
    AND r.commits @> at_commit)
UNION ALL
(SELECT r.partition_key, r.content_hash, r.column_hashes, r.row_count, r.addresses
   FROM partition_versions r
  WHERE span IS NULL AND label IS NULL AND r.dataset_version = version AND r.commits @> at_commit
  LIMIT 1001)
$$;
COMMENT ON FUNCTION partitions_read IS
    'The partitions of a generation at a commit: those that overlap a range, one label, or all; of more than 1000, some.';

CREATE OR REPLACE FUNCTION content_read(
    version uuid, at_commit bigint, span int8range, label text, columns text[] DEFAULT NULL)
RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN count(*) BETWEEN 1 AND 1000 AND bool_and(p.content IS NOT NULL)
            THEN sha256(string_agg(convert_to(p.partition_key, 'UTF8') || '\x00'::bytea || p.content, ''::bytea
                                   ORDER BY p.partition_key COLLATE "C")) END
  FROM (SELECT r.partition_key, content_in(columns, r.content_hash, r.column_hashes, r.row_count) AS content
          FROM partitions_read(version, at_commit, span, label) r) p
$$;

CREATE FUNCTION addresses_read(version uuid, at_commit bigint, span int8range, label text, listed bytea[]) RETURNS text[]
LANGUAGE sql STABLE AS $$
WITH there AS MATERIALIZED (
    SELECT r.addresses FROM partitions_read(version, at_commit, span, label) r LIMIT 17
), known AS MATERIALIZED (
    SELECT count(*) <= 16 AND bool_and(t.addresses IS NOT NULL) IS NOT FALSE AS whole FROM there t
)
SELECT coalesce(array_agg(encode(a.address, 'hex') ORDER BY a.address), '{}')
  FROM unnest(listed) AS a (address)
 WHERE NOT (SELECT whole FROM known) OR EXISTS (SELECT FROM there t WHERE may_hold(t.addresses, a.address))
$$;
COMMENT ON FUNCTION addresses_read IS
    'Those of the listed addresses that the partitions which are read may hold, as in content_read; all of them where more than 16 partitions are read, or one has no summary.';

CREATE OR REPLACE FUNCTION memo_key(task uuid, codes jsonb, of_all_columns boolean DEFAULT false) RETURNS bytea
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN r.known AND (j.makes_whole OR s.key IS NOT NULL)
            THEN sha256(convert_to((jsonb_build_array(j.memo_hash, codes -> j.operator, s.key, s.span, r.contents)
                                    || CASE WHEN j.addresses IS NULL THEN '[]' ELSE r.addresses END)::text, 'UTF8')) END
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.memo_hash IS NOT NULL
 CROSS JOIN LATERAL (
     SELECT CASE WHEN NOT j.makes_whole THEN t.input_versions ->> 'partition_key' END AS key,
            CASE WHEN NOT j.makes_whole AND t.input_versions ? 'start'
                 THEN int8range((t.input_versions ->> 'start')::bigint, (t.input_versions ->> 'end')::bigint, '[]') END AS span) s
 CROSS JOIN LATERAL (
     SELECT bool_and(c.content IS NOT NULL) AS known,
            jsonb_agg(jsonb_build_array(i.dataset_uuid::text = t.input_versions ->> 'dataset_uuid', encode(c.content, 'hex'))
                      ORDER BY i.position) AS contents,
            jsonb_agg(to_jsonb(c.addresses) ORDER BY i.position) AS addresses
       FROM job_inputs i
       JOIN datasets d ON d.id = i.dataset_uuid
       LEFT JOIN task_inputs p ON p.task_id = t.id AND p.attempt = t.attempt AND p.input_dataset_uuid = i.dataset_uuid
       LEFT JOIN dag_version_datasets served
              ON p.task_id IS NULL AND served.dataset_uuid = i.dataset_uuid
             AND served.dag_version_id = version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name)
       LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
      CROSS JOIN LATERAL (
          SELECT coalesce(p.input_dataset_version, served.dataset_version) AS version,
                 CASE WHEN p.task_id IS NULL THEN h.last_commit ELSE p.input_commit END AS at_commit,
                 CASE WHEN i.triggers THEN s.span END AS span, CASE WHEN i.triggers THEN s.key END AS label) w
      CROSS JOIN LATERAL (
          SELECT content_read(w.version, w.at_commit, w.span, w.label,
                              CASE WHEN NOT of_all_columns THEN i.columns_read END) AS content,
                 CASE WHEN j.addresses IS NOT NULL
                      THEN addresses_read(w.version, w.at_commit, w.span, w.label, j.addresses) END AS addresses) c
      WHERE i.job_id = j.id) r
 WHERE t.id = task
$$;
COMMENT ON FUNCTION memo_key IS
    'The memo key of a task: of what its attempt has pinned or, before its claim, would pin now, in the columns that its job reads, or in all, and of its list of addresses those that may be there. NULL: its outputs are not used again. codes: the version of each operator''s code.';
