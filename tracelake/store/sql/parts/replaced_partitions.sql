    -- Partitions of a generation ($1) in force with these keys ($2), or overlapping these ranges ($3, $4). Each range is
    -- looked up by itself, in the index that keeps ranges apart: an OR would fit no index, and read all partitions.
    SELECT p.partition_key, p.valid_from
      FROM partition_versions p
     WHERE p.dataset_version = $1 AND p.valid_to IS NULL AND p.partition_key = ANY ($2::text[])
    UNION
    SELECT p.partition_key, p.valid_from
      FROM unnest($3::bigint[], $4::bigint[]) AS n (start, stop)
      JOIN partition_versions p
        ON uuid_span(p.dataset_version, p.dataset_version, '[]') && uuid_span($1, $1, '[]')
       AND p.block_range IS NOT NULL AND p.block_range && int8range(n.start, n.stop)
       AND p.commits @> 9223372036854775807 AND p.valid_to IS NULL -- the same twice: the first by the index
     WHERE n.start IS NOT NULL
