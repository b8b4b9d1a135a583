    -- Sources that ended, and when they may start again. The wait doubles with each restart, as a job's retries do;
    -- the time that the run lasted counts towards it, so one that ran well starts again at once.
    SELECT s.job_id,
           s.state_since + make_interval(secs => greatest(0,
               least(j.retry_backoff_seconds * 2.0 ^ least(s.restarts, 30), j.retry_backoff_max_seconds)
               - coalesce(extract(epoch FROM t.last_heartbeat - t.started_at), 0))) AS due
      FROM sources s
      JOIN jobs j ON j.id = s.job_id
      LEFT JOIN tasks t ON t.id = s.task_id
     WHERE s.state = 'Dead'
