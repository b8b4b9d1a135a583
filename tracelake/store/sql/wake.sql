-- name: notify
-- Notifies other replicas of work that this one wrote and does not get to: the channel, and which signal.
SELECT pg_notify($1, $2);
