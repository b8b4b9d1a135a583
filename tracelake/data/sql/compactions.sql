-- Compactions under way.

-- name: claim
-- The first dataset that a table is compacted into is the only one.
UPDATE trace_meta.dataset_tables SET compacted_to = coalesce(compacted_to, %(dataset)s)
 WHERE dataset_version = %(version)s
RETURNING compacted_to;

-- name: begin
-- What an attempt has read of a range, before it writes it as Parquet.
INSERT INTO trace_meta.compactions (dataset_version, location, range_start, range_stop, up_to_seq)
VALUES (%(version)s, %(location)s, %(start)s, %(stop)s, %(up_to_seq)s)
ON CONFLICT (dataset_version, location, range_start)
DO UPDATE SET range_stop = excluded.range_stop, up_to_seq = excluded.up_to_seq;

-- name: begun
-- Those of a table, the oldest first.
SELECT location, range_start, range_stop, up_to_seq
  FROM trace_meta.compactions
 WHERE dataset_version = %(version)s
 ORDER BY started_at;

-- name: end
-- Its commit was seen, and its blocks were marked.
DELETE FROM trace_meta.compactions
 WHERE dataset_version = %(version)s AND location = %(location)s AND range_start = %(start)s;

-- name: forget_old
-- Attempts that never committed; a task ends within thirty days.
DELETE FROM trace_meta.compactions
 WHERE dataset_version = %(version)s AND started_at < now() - interval '31 days';
