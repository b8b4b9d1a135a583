-- A wake-up names the priority of its task, its organisation and its job: each runtime has a queue for each priority, on
-- which organisations and jobs take turns.

CREATE FUNCTION wake_up_of(task_id uuid, runtime text, priority work_priority, org_id uuid, job_id uuid)
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT jsonb_build_object(
        'task_id', task_id, 'runtime', runtime, 'priority', priority, 'org_id', org_id, 'job_id', job_id)
$$;

COMMENT ON FUNCTION wake_up_of(uuid, text, work_priority, uuid, uuid) IS
    'The payload of the outbox entry that wakes a task.';
