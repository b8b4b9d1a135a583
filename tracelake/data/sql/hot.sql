-- The list of hot tables, and their blocks. Statements on a hot table itself are composed in Python.

-- name: lock_name
-- Lets one transaction at a time create or drop a table, by its generation's id.
SELECT pg_advisory_xact_lock(hashtextextended('hot ' || %(version)s, 0));

-- name: registered
-- Returns the entry of a generation's table.
SELECT dataset_uuid, org_id, table_name, columns::text, unique_key, number_column
  FROM trace_meta.dataset_tables
 WHERE dataset_version = %(version)s;

-- name: register
-- Adds a table to the list.
INSERT INTO trace_meta.dataset_tables
    (dataset_uuid, dataset_version, org_id, table_name, columns, unique_key, number_column)
VALUES (%(dataset)s, %(version)s, %(org)s, %(table_name)s, %(columns)s::jsonb, %(unique_key)s, %(number_column)s);

-- name: widen
-- Stores the columns added to a registered table.
UPDATE trace_meta.dataset_tables SET columns = %(columns)s::jsonb WHERE dataset_version = %(version)s;

-- name: unregister
-- Removes a table and its blocks from the list of tables.
DELETE FROM trace_meta.dataset_tables WHERE dataset_version = %(version)s;

-- name: lock_tables
-- Writers of a table queue here, in the same order for all, so that two with several tables cannot deadlock.
SELECT dataset_version, written_to, gone_from
  FROM trace_meta.dataset_tables
 WHERE dataset_version = ANY(%(versions)s)
 ORDER BY dataset_version
   FOR NO KEY UPDATE;

-- name: unmark_from
-- Deletes the marks of every block from a number on.
DELETE FROM trace_meta.hot_blocks WHERE dataset_version = ANY(%(versions)s) AND number >= %(first)s;

-- name: unmark_numbers
-- Deletes the marks of exactly these blocks.
DELETE FROM trace_meta.hot_blocks WHERE dataset_version = ANY(%(versions)s) AND number = ANY(%(numbers)s);

-- name: mark
-- Marks the same blocks in each of the tables, every mark with a new seq.
INSERT INTO trace_meta.hot_blocks (dataset_version, number, hash, parent_hash)
SELECT version, number, hash, parent_hash
  FROM unnest(%(versions)s::uuid[]) AS version,
       unnest(%(numbers)s::bigint[], %(hashes)s::bytea[], %(parents)s::bytea[]) AS block (number, hash, parent_hash)
 ORDER BY version, number;

-- name: torn
-- Returns a block near the written ones whose parent is not the block before it: two branches in one table.
SELECT child.dataset_version, child.number
  FROM unnest(%(versions)s::uuid[]) AS version
  JOIN trace_meta.hot_blocks child
    ON child.dataset_version = version AND child.number BETWEEN %(first)s AND %(last)s + 1
  JOIN trace_meta.hot_blocks parent
    ON parent.dataset_version = version AND parent.number = child.number - 1
 WHERE child.parent_hash <> parent.hash
 ORDER BY child.number
 LIMIT 1;

-- name: set_extents
-- Stores how far each table was written, and which numbers are gone.
UPDATE trace_meta.dataset_tables t
   SET written_to = new.written_to, gone_from = new.gone_from
  FROM unnest(%(versions)s::uuid[], %(written_to)s::bigint[], %(gone_from)s::bigint[])
       AS new (dataset_version, written_to, gone_from)
 WHERE t.dataset_version = new.dataset_version
   AND (t.written_to, t.gone_from) IS DISTINCT FROM (new.written_to, new.gone_from);

-- name: mark_compacted
-- Marks the blocks that a compaction read as cold from its commit on. A block that a later compaction had marked, but
-- that this commit overwrote with older rows, becomes hot again.
UPDATE trace_meta.hot_blocks
   SET compacted_in = CASE WHEN seq <= %(up_to_seq)s THEN %(commit)s::bigint END,
       compacted_at = CASE WHEN seq <= %(up_to_seq)s THEN now() END
 WHERE dataset_version = %(version)s
   AND number >= %(start)s AND number < %(stop)s
   AND (seq <= %(up_to_seq)s AND compacted_in IS NULL
        OR seq > %(up_to_seq)s AND compacted_in < %(commit)s)
RETURNING compacted_in IS NOT NULL;

-- name: sweep_marks
-- Deletes the marks of blocks compacted before the grace period, and records them for readers of older commits.
WITH old AS (
    DELETE FROM trace_meta.hot_blocks
     WHERE dataset_version = %(version)s AND compacted_at < now() - %(grace)s::interval
    RETURNING number, compacted_in
), kept AS (
    INSERT INTO trace_meta.hot_swept (dataset_version, commit, numbers)
    SELECT %(version)s, compacted_in, range_agg(int8range(number, number + 1)) FROM old GROUP BY compacted_in
    ON CONFLICT (dataset_version, commit)
    DO UPDATE SET numbers = hot_swept.numbers + EXCLUDED.numbers, swept_at = EXCLUDED.swept_at
)
SELECT number FROM old ORDER BY number;

-- name: merge_swept
-- Merges sweeps older than any pinned reader (a task ends within thirty days) into one row with the latest of their
-- commits: a reader of an earlier commit is refused all of it.
WITH old AS (
    SELECT commit FROM trace_meta.hot_swept
     WHERE dataset_version = %(version)s AND swept_at < now() - interval '31 days'
), latest AS (
    SELECT max(commit) AS commit FROM old
), merged AS (
    DELETE FROM trace_meta.hot_swept s USING old, latest
     WHERE s.dataset_version = %(version)s AND s.commit = old.commit AND s.commit < latest.commit
    RETURNING s.numbers
)
UPDATE trace_meta.hot_swept s
   SET numbers = s.numbers + (SELECT range_agg(numbers) FROM merged)
  FROM latest
 WHERE s.dataset_version = %(version)s AND s.commit = latest.commit AND EXISTS (SELECT FROM merged);

-- name: extent
-- Returns which numbers of a table are gone.
SELECT gone_from, written_to FROM trace_meta.dataset_tables WHERE dataset_version = %(version)s;

-- name: runs
-- Returns the contiguous runs of blocks that are hot for a reader of this commit, and their highest seq.
SELECT min(number), max(number) + 1, max(seq)
  FROM (SELECT number, seq, number - row_number() OVER (ORDER BY number) AS run
          FROM trace_meta.hot_blocks
         WHERE dataset_version = %(version)s
           AND number >= %(start)s AND number < %(stop)s
           AND (compacted_in IS NULL OR compacted_in > %(commit)s)) AS hot
 GROUP BY run
 ORDER BY 1;

-- name: holes
-- Returns the blocks that a reader of this commit needs from the hot table and that were swept: if any, it is too old.
SELECT (range_agg(swept.numbers) * int8multirange(int8range(%(start)s, %(stop)s))
        - coalesce((SELECT range_agg(int8range(number, number + 1))
                      FROM trace_meta.hot_blocks
                     WHERE dataset_version = %(version)s
                       AND number >= %(start)s AND number < %(stop)s
                       AND (compacted_in IS NULL OR compacted_in > %(commit)s)), '{}')
        - coalesce((SELECT int8multirange(int8range(gone_from, written_to, '[]'))
                      FROM trace_meta.dataset_tables
                     WHERE dataset_version = %(version)s AND gone_from IS NOT NULL), '{}'))::text
  FROM trace_meta.hot_swept swept
 WHERE swept.dataset_version = %(version)s AND swept.commit > %(commit)s;
