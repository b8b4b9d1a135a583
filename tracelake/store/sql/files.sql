-- name: list_partitions
-- The partitions of generations as of a commit, in their order; only those that overlap a range unless it is NULL.
SELECT p.partition_key, p.location, p.files, p.valid_from AS commit, lower(p.block_range) AS start,
       upper(p.block_range) - 1 AS "end", p.row_count, p.files_removed_at
  FROM partition_versions p
 WHERE p.dataset_version = ANY ($1::uuid[])
   AND p.commits @> $2::bigint
   AND ($3::bigint IS NULL OR p.block_range && int8range($3, $4))
 ORDER BY lower(p.block_range), p.partition_key;

-- name: find_head
-- The columns of a generation, the last commit of its dataset, and whether its rows are in a table.
SELECT v.columns, coalesce(h.last_commit, 0) AS last_commit,
       coalesce(d.storage ->> 'kind', 'parquet') <> 'parquet' AS hot
  FROM dataset_versions v
  JOIN datasets d ON d.id = v.dataset_uuid
  LEFT JOIN dataset_heads h ON h.dataset_uuid = v.dataset_uuid
 WHERE v.id = $1;
