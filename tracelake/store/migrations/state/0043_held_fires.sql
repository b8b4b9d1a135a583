-- Tasks of sources that are fired wait while pressure holds their job.

CREATE FUNCTION held_by_pressure(job uuid) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = job AND p.cause_job_id IS NOT NULL)
$$;

COMMENT ON FUNCTION held_by_pressure(uuid) IS
    'Whether a queue downstream of the job is too long or too old now: then tasks of a source that is fired are not woken.';
COMMENT ON COLUMN tasks.woken_at IS
    'When its wake-up was written to the outbox; NULL: it waits for a slot of its job (max_concurrency), operator or runtime (in_flight_limits), or, as a task of a source, for the end of a pause.';
