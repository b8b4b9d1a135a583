-- name: share
-- Takes the lock together with others that delete files, until the transaction ends. False: a backup holds it.
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('trace files', 0));

-- name: hold
-- Takes the lock alone, until the connection ends. False: files are being deleted, or another backup holds it.
SELECT pg_try_advisory_lock(hashtextextended('trace files', 0));
