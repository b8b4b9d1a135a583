-- name: tell
-- Other replicas are told of work that this one wrote and does not get to: the channel, and which bell to ring.
SELECT pg_notify($1, $2);
