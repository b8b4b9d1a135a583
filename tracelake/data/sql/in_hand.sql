-- Which batches a sink died over.

-- name: left
-- How many sinks have begun to read these batches, and did not finish.
SELECT publish_id, tries FROM trace_meta.batches_in_hand WHERE publish_id = ANY (%(ids)s);

-- name: take
-- These are read from now on.
INSERT INTO trace_meta.batches_in_hand (publish_id)
SELECT unnest(%(ids)s::uuid[]) ORDER BY 1
ON CONFLICT (publish_id) DO UPDATE SET tries = batches_in_hand.tries + 1, since = now();

-- name: put_down
-- What has become of these is known, whatever it is.
DELETE FROM trace_meta.batches_in_hand WHERE publish_id = ANY (%(ids)s);

-- name: sweep
-- What is left of batches that no sink has begun to read again for so long: they have ended in another way.
DELETE FROM trace_meta.batches_in_hand WHERE since < now() - %(age)s::interval;
