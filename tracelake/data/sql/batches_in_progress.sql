-- Batches in progress: finds those during which a sink died.

-- name: left
-- Returns how many sinks began to read each of these batches and did not finish.
SELECT publish_id, tries FROM trace_meta.batches_in_progress WHERE publish_id = ANY (%(ids)s);

-- name: take
-- Records that these batches are being read.
INSERT INTO trace_meta.batches_in_progress (publish_id)
SELECT unnest(%(ids)s::uuid[]) ORDER BY 1
ON CONFLICT (publish_id) DO UPDATE SET tries = batches_in_progress.tries + 1, since = now();

-- name: release
-- Deletes the records of batches whose result is known.
DELETE FROM trace_meta.batches_in_progress WHERE publish_id = ANY (%(ids)s);

-- name: sweep
-- Deletes old records of batches that no sink has begun to read again: they ended in another way.
DELETE FROM trace_meta.batches_in_progress WHERE since < now() - %(age)s::interval;
