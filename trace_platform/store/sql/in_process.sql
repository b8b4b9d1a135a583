-- name: lock_job
-- One task of a job at a time, until the transaction ends: the state that a task reads is the one that it replaces.
SELECT pg_advisory_xact_lock(hashtextextended('trace operator ' || t.job_id, 0)) FROM tasks t WHERE t.id = $1;
