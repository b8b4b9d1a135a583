-- Running compactions.

-- name: claim
-- Binds a table to the first dataset that it is compacted into.
UPDATE trace_meta.dataset_tables SET compacted_to = coalesce(compacted_to, %(dataset)s)
 WHERE dataset_version = %(version)s
RETURNING compacted_to;

-- name: begin
-- Records what an attempt has read of a range, before it writes the Parquet.
INSERT INTO trace_meta.compactions (dataset_version, location, range_start, range_stop, up_to_seq)
VALUES (%(version)s, %(location)s, %(start)s, %(stop)s, %(up_to_seq)s)
ON CONFLICT (dataset_version, location, range_start)
DO UPDATE SET range_stop = excluded.range_stop, up_to_seq = excluded.up_to_seq;

-- name: begun
-- Returns the compactions of a table, the oldest first.
SELECT location, range_start, range_stop, up_to_seq
  FROM trace_meta.compactions
 WHERE dataset_version = %(version)s
 ORDER BY started_at;

-- name: end
-- Deletes a compaction whose commit was seen and whose blocks were marked.
DELETE FROM trace_meta.compactions
 WHERE dataset_version = %(version)s AND location = %(location)s AND range_start = %(start)s;

-- name: delete_old
-- Deletes attempts that never committed; a task ends within thirty days.
DELETE FROM trace_meta.compactions
 WHERE dataset_version = %(version)s AND started_at < now() - interval '31 days';
