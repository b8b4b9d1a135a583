-- Backpressure: when producers resume, and what waits for a paused job, in order.

ALTER TABLE jobs
    ADD COLUMN resume_queue_depth integer,
    ADD COLUMN resume_queue_age interval,
    ADD CONSTRAINT jobs_resume_depth_below_max CHECK (
        resume_queue_depth IS NULL OR coalesce(resume_queue_depth BETWEEN 0 AND max_queue_depth, false)),
    ADD CONSTRAINT jobs_resume_age_below_max CHECK (
        resume_queue_age IS NULL OR coalesce(resume_queue_age BETWEEN interval '0' AND max_queue_age, false));
COMMENT ON COLUMN jobs.resume_queue_depth IS 'Producers resume when fewer tasks are queued; NULL: half of max_queue_depth.';
COMMENT ON COLUMN jobs.resume_queue_age IS
    'Producers resume when the oldest queued task is younger; NULL: half of max_queue_age.';
CREATE INDEX idx_jobs_with_thresholds ON jobs (id) WHERE max_queue_depth IS NOT NULL OR max_queue_age IS NOT NULL;
COMMENT ON INDEX idx_jobs_with_thresholds IS 'The jobs whose queues can pause others.';

ALTER TABLE held_events
    DROP CONSTRAINT held_events_pkey,
    ALTER COLUMN event_id DROP NOT NULL,
    ADD COLUMN invalidation_id uuid REFERENCES data_invalidations (id),
    ADD COLUMN waits_for uuid NOT NULL,
    ADD COLUMN history boolean NOT NULL DEFAULT false,
    ADD COLUMN seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    ADD PRIMARY KEY (job_id, seq),
    ADD CONSTRAINT held_events_once UNIQUE (job_id, event_id),
    ADD CONSTRAINT held_events_invalidation_once UNIQUE (job_id, invalidation_id),
    ADD CONSTRAINT held_events_are_one_thing CHECK (num_nonnulls(event_id, invalidation_id) = 1);
COMMENT ON TABLE held_events IS
    'Events and invalidations that wait until a job is no longer paused; then they become tasks, in the order of seq.';
COMMENT ON COLUMN held_events.job_id IS 'The job that gets the task.';
COMMENT ON COLUMN held_events.waits_for IS 'The job whose pause holds it back: that job itself, or the source of the event.';
COMMENT ON COLUMN held_events.history IS 'Of a task that catches up: its task is bulk work, and others do not wait behind it.';
COMMENT ON COLUMN held_events.seq IS 'The order in which they were held, and are released.';
CREATE INDEX idx_held_events_event ON held_events (event_id) WHERE event_id IS NOT NULL;
COMMENT ON INDEX idx_held_events_event IS 'Whether an event is held for any job.';
CREATE INDEX idx_held_events_new ON held_events (job_id) WHERE NOT history;
COMMENT ON INDEX idx_held_events_new IS 'Whether new data is held for a job, however much of the past is.';

CREATE VIEW paused_jobs AS
SELECT p.job_id, p.reason, p.cause_job_id, p.threshold, p.observed, p.since
  FROM pauses p
  JOIN jobs j ON j.id = p.job_id
 WHERE p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = j.priority);
COMMENT ON VIEW paused_jobs IS
    'Why jobs get no new tasks of their own priority now: a row for each cause. A pause without a queue as its cause holds every priority.';

CREATE OR REPLACE VIEW triggered_jobs AS
SELECT i.dataset_uuid, j.org_id, j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime,
       j.takes_history,
       -- What came before is released first: while anything is held for a job, everything is. New data does not wait for
       -- data that catches up.
       EXISTS (SELECT FROM pauses p
                WHERE p.job_id = j.id AND p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = j.priority))
       OR EXISTS (SELECT FROM held_events h WHERE h.job_id = j.id AND NOT h.history) AS holds,
       EXISTS (SELECT FROM pauses p
                WHERE p.job_id = j.id AND p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = 'bulk'))
       OR EXISTS (SELECT FROM held_events h WHERE h.job_id = j.id) AS holds_history
  FROM job_inputs i
  JOIN jobs j ON j.id = i.job_id
 WHERE i.live AND i.triggers AND j.activation = 'reactive';
