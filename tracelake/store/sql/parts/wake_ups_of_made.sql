-- A wake-up for each task (`made`) that may start now. $2: who publishes it; $3: how long it is left to him.
), owed AS (
    -- Taken by the router as they are written, so that it can publish them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT m.org_id, 'enqueue_task', jsonb_build_object('task_id', m.id, 'runtime', j.runtime),
           'Processing', $2, now() + $3::interval, 1
      FROM made m JOIN jobs j ON j.id = m.job_id
     WHERE m.woken_at IS NOT NULL
    RETURNING id, payload
