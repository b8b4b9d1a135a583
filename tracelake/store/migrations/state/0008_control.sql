-- What the Dispatcher keeps running, and what it holds back.

CREATE TYPE source_state AS ENUM ('Pending', 'Running', 'Dead', 'Draining');
COMMENT ON TYPE source_state IS 'To be started; heartbeating; heartbeats missed; told to stop.';

CREATE TABLE sources (
    job_id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    run_id uuid NOT NULL DEFAULT uuidv7(),
    state source_state NOT NULL DEFAULT 'Pending',
    state_since timestamptz NOT NULL DEFAULT now(),
    task_id uuid REFERENCES tasks (id),
    last_heartbeat timestamptz,
    restarts integer NOT NULL DEFAULT 0,
    drain_reason text,
    last_error text,
    bootstrapped_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sources_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT sources_running_has_a_task CHECK (state NOT IN ('Running', 'Draining') OR task_id IS NOT NULL),
    CONSTRAINT sources_dead_says_why CHECK (state <> 'Dead' OR last_error IS NOT NULL),
    CONSTRAINT sources_draining_says_why CHECK ((state = 'Draining') = (drain_reason IS NOT NULL)),
    CONSTRAINT sources_restarts_are_not_negative CHECK (restarts >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE sources IS 'An always-on source: one run, kept alive; a source that has stopped for good has no row.';
COMMENT ON COLUMN sources.run_id IS 'Stays the same over restarts, so that what it emits twice is known as one.';
COMMENT ON COLUMN sources.task_id IS 'The long task that runs it.';
COMMENT ON COLUMN sources.drain_reason IS 'Shutdown, deactivation or pause.';
COMMENT ON COLUMN sources.bootstrapped_at IS 'When the bootstrap of this version was done; it is done once.';

CREATE TYPE pause_reason AS ENUM ('depth', 'age', 'manual');

CREATE TABLE pauses (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    priority work_priority NOT NULL,
    reason pause_reason NOT NULL,
    cause_job_id uuid,
    threshold numeric,
    observed numeric,
    paused_by uuid,
    since timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    CONSTRAINT pauses_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT pauses_cause_of_same_org FOREIGN KEY (org_id, cause_job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT pauses_user_of_same_org FOREIGN KEY (org_id, paused_by) REFERENCES users (org_id, id),
    CONSTRAINT pauses_pressure_says_why CHECK (
        reason = 'manual' OR num_nulls(cause_job_id, threshold, observed) = 0
    ),
    CONSTRAINT pauses_by_hand_say_who CHECK ((reason = 'manual') = (paused_by IS NOT NULL)),
    CONSTRAINT pauses_by_hand_have_no_queue CHECK (
        reason <> 'manual' OR num_nonnulls(cause_job_id, threshold, observed) = 0
    ),
    -- A job that paused itself could never drain.
    CONSTRAINT pauses_no_job_pauses_itself CHECK (cause_job_id <> job_id),
    CONSTRAINT pauses_threshold_is_positive CHECK (threshold > 0)
);
COMMENT ON TABLE pauses IS 'Why a job gets no tasks of a priority: whose queue, which threshold, since when.';
COMMENT ON COLUMN pauses.priority IS 'Which tasks are held: bulk at half the threshold, normal at the full one.';
COMMENT ON COLUMN pauses.cause_job_id IS 'The job whose queue tripped.';
COMMENT ON COLUMN pauses.threshold IS 'Tasks for depth, seconds for age.';
COMMENT ON COLUMN pauses.observed IS 'What was measured when it tripped.';
COMMENT ON COLUMN pauses.until IS 'NULL: in force.';
CREATE UNIQUE INDEX pauses_one_per_cause ON pauses (job_id, priority, reason, cause_job_id) NULLS NOT DISTINCT
    WHERE until IS NULL;
