-- Units of work. A task is claimed by id, leased to one worker at a time, and closed once.

-- What a row may hold follows from its status, and CHECKs keep it so:
--
--   status     lease_token, worker_id, started_at   lease_expires_at   completed_at   and
--   Queued     none                                 -                  -              nothing of any attempt
--   Running    all                                  set                -              a wake-up was sent for it
--   Completed  all (none if memoised)               -                  set            outputs, completion
--   Failed     all, or none if it never started     -                  set            error_message; completion
--   Canceled   all, or none if it never started     -                  set            cancel_reason
--
-- Failed keeps attempt and lease_token: a late reply of that attempt is accepted until the retry, which goes back to
-- Queued, takes the next number and drops the token. Failed with next_retry_at waits; without, it is final.

CREATE TYPE task_status AS ENUM ('Queued', 'Running', 'Completed', 'Failed', 'Canceled');

CREATE TABLE tasks (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    status task_status NOT NULL DEFAULT 'Queued',
    priority work_priority NOT NULL DEFAULT 'normal',
    attempt integer NOT NULL DEFAULT 1,
    max_attempts integer NOT NULL DEFAULT 3,
    timeout_seconds integer,
    dedupe_key text,
    -- No foreign keys: the routing statement reads the event or invalidation that it makes the task from.
    event_id uuid,
    invalidation_id uuid,
    partitions text[],
    input_versions jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    queued_at timestamptz NOT NULL DEFAULT now(),
    woken_at timestamptz,
    lease_token uuid,
    worker_id text,
    started_at timestamptz,
    lease_expires_at timestamptz,
    last_heartbeat timestamptz,
    progress jsonb,
    completed_at timestamptz,
    next_retry_at timestamptz,
    error_message text,
    cancel_reason text,
    outputs jsonb,
    completion_hash bytea,
    completion_answer jsonb,
    memo_key bytea,
    memoized_from uuid,
    CONSTRAINT tasks_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT tasks_attempt_within_max CHECK (attempt BETWEEN 1 AND max_attempts),
    CONSTRAINT tasks_timeout_is_positive CHECK (timeout_seconds >= 1),
    CONSTRAINT tasks_dedupe_key_says_something CHECK (dedupe_key <> ''),
    CONSTRAINT tasks_queued_holds_nothing CHECK (
        status <> 'Queued'
        OR num_nonnulls(lease_token, worker_id, started_at, last_heartbeat, progress, completion_hash, memoized_from) = 0
    ),
    CONSTRAINT tasks_running_is_leased CHECK (
        status <> 'Running' OR num_nulls(lease_token, worker_id, started_at, lease_expires_at) = 0
    ),
    CONSTRAINT tasks_running_was_woken CHECK (status <> 'Running' OR woken_at IS NOT NULL),
    CONSTRAINT tasks_only_running_has_a_lease CHECK (lease_expires_at IS NULL OR status = 'Running'),
    CONSTRAINT tasks_attempt_is_known_whole CHECK (num_nulls(lease_token, worker_id, started_at) IN (0, 3)),
    -- A heartbeat must not carry an attempt past its timeout.
    CONSTRAINT tasks_lease_within_timeout CHECK (
        lease_expires_at - started_at <= make_interval(secs => timeout_seconds)
    ),
    CONSTRAINT tasks_ended_says_when CHECK ((completed_at IS NOT NULL) = (status IN ('Completed', 'Failed', 'Canceled'))),
    CONSTRAINT tasks_completed_ran_or_was_memoised CHECK (
        status <> 'Completed' OR (lease_token IS NULL) = (memoized_from IS NOT NULL)
    ),
    CONSTRAINT tasks_only_completed_has_outputs CHECK (
        status = 'Completed' OR (outputs IS NULL AND memoized_from IS NULL)
    ),
    CONSTRAINT tasks_only_failed_has_an_error CHECK ((status = 'Failed') = (error_message IS NOT NULL)),
    CONSTRAINT tasks_error_says_something CHECK (error_message <> ''),
    CONSTRAINT tasks_only_failed_is_retried CHECK (
        next_retry_at IS NULL OR (status = 'Failed' AND attempt < max_attempts)
    ),
    CONSTRAINT tasks_only_canceled_has_a_reason CHECK ((status = 'Canceled') = (cancel_reason IS NOT NULL)),
    CONSTRAINT tasks_completion_ends_an_attempt CHECK (
        completion_hash IS NULL OR (status <> 'Running' AND lease_token IS NOT NULL)
    ),
    CONSTRAINT tasks_completion_hash_is_sha256 CHECK (octet_length(completion_hash) = 32),
    CONSTRAINT tasks_answer_is_to_a_completion CHECK (completion_answer IS NULL OR completion_hash IS NOT NULL),
    CONSTRAINT tasks_memo_key_is_sha256 CHECK (octet_length(memo_key) = 32)
) WITH (
    -- Claim, heartbeat and completion change columns that the partial indexes stand on, so none can be a heap-only
    -- update, and room left in a page would only make history larger.
    fillfactor = 100,
    -- By count, not by share of the table: a share of five million finished tasks would be a million dead rows. Vacuum
    -- skips pages of old tasks (all visible) and leaves the big indexes alone while few pages hold dead rows.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.01,
    autovacuum_analyze_threshold = 20000
);
COMMENT ON TABLE tasks IS 'One unit of work for one job, from its creation to its end, over any number of attempts.';
COMMENT ON COLUMN tasks.attempt IS 'The current attempt, from 1; a retry takes the next.';
COMMENT ON COLUMN tasks.max_attempts IS 'Taken from the job; a retry by hand raises it.';
COMMENT ON COLUMN tasks.timeout_seconds IS 'Taken from the job: how long an attempt may last, whatever its heartbeats.';
COMMENT ON COLUMN tasks.dedupe_key IS
    'Names the unit of work: one task per job and key, for ever. Work done again carries its reason in the key.';
COMMENT ON COLUMN tasks.event_id IS 'The event that it was made from.';
COMMENT ON COLUMN tasks.invalidation_id IS 'The invalidation that it was made from.';
COMMENT ON COLUMN tasks.partitions IS 'Keys of the partitions that it is to make; NULL: not by partition.';
COMMENT ON COLUMN tasks.input_versions IS 'What it reads: generation, commit, range and filter of each input.';
COMMENT ON COLUMN tasks.queued_at IS 'When it last became Queued: the age of a queue counts from here.';
COMMENT ON COLUMN tasks.woken_at IS
    'When its wake-up was put into the outbox; NULL: it waits for a slot of its job (max_concurrency).';
COMMENT ON COLUMN tasks.progress IS 'The last that the worker said with a heartbeat.';
COMMENT ON COLUMN tasks.completed_at IS 'When it ended, however it ended.';
COMMENT ON COLUMN tasks.next_retry_at IS 'Failed only. Set: it waits for the next attempt. NULL: it has failed for good.';
COMMENT ON COLUMN tasks.outputs IS 'Per output: paths, cursors, partitions, metrics.';
COMMENT ON COLUMN tasks.completion_hash IS 'SHA-256 of the completion that ended the attempt: the same one again is no conflict.';
COMMENT ON COLUMN tasks.completion_answer IS 'What that completion was answered with, to be answered again.';
COMMENT ON COLUMN tasks.memo_key IS 'SHA-256 over config hash and input commits: equal keys give equal outputs.';
COMMENT ON COLUMN tasks.memoized_from IS 'The completed task whose outputs were taken instead of running.';

-- Finished tasks are found by id, by dedupe key and by memo key. The other indexes hold live rows only, so they stay
-- small for ever. A statement that names a task by id should ask for its status as `(status = 'Queued') IS TRUE`: that
-- keeps them out of the planner's choice, which, made while they are empty, would be to scan one.
CREATE UNIQUE INDEX idx_tasks_job_dedupe ON tasks (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX idx_tasks_queued ON tasks (job_id, queued_at) WHERE status = 'Queued';
CREATE INDEX idx_tasks_slot_wait ON tasks (job_id, priority, queued_at) WHERE status = 'Queued' AND woken_at IS NULL;
CREATE INDEX idx_tasks_in_flight ON tasks (job_id) WHERE status IN ('Queued', 'Running') AND woken_at IS NOT NULL;
CREATE INDEX idx_tasks_lease_expiry ON tasks (lease_expires_at) WHERE status = 'Running';
CREATE INDEX idx_tasks_next_retry ON tasks (next_retry_at) WHERE status = 'Failed' AND next_retry_at IS NOT NULL;
CREATE INDEX idx_tasks_failed ON tasks (org_id, completed_at) WHERE status = 'Failed' AND next_retry_at IS NULL;
CREATE INDEX idx_tasks_memo ON tasks (org_id, memo_key) WHERE status = 'Completed' AND memo_key IS NOT NULL;
COMMENT ON INDEX idx_tasks_job_dedupe IS 'One task per unit of work, however often its event is delivered.';
COMMENT ON INDEX idx_tasks_queued IS 'Depth and age of each job''s queue.';
COMMENT ON INDEX idx_tasks_slot_wait IS 'Whose turn it is when a slot of the job comes back.';
COMMENT ON INDEX idx_tasks_in_flight IS 'How many slots of a job are taken.';
COMMENT ON INDEX idx_tasks_lease_expiry IS 'Whose lease has run out.';
COMMENT ON INDEX idx_tasks_next_retry IS 'Whose retry is due.';
COMMENT ON INDEX idx_tasks_failed IS 'What failed for good, for people.';
COMMENT ON INDEX idx_tasks_memo IS 'A completed task with the same config and inputs.';

CREATE TYPE attempt_outcome AS ENUM ('Completed', 'Failed', 'TimedOut', 'LeaseExpired', 'Canceled');

CREATE TABLE task_attempts (
    task_id uuid NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    attempt integer NOT NULL,
    org_id uuid NOT NULL,
    lease_token uuid NOT NULL,
    worker_id text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    outcome attempt_outcome,
    late boolean NOT NULL DEFAULT false,
    error_message text,
    PRIMARY KEY (task_id, attempt),
    CONSTRAINT task_attempts_count_from_one CHECK (attempt >= 1),
    CONSTRAINT task_attempts_ended_has_an_outcome CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    CONSTRAINT task_attempts_failure_says_why CHECK (
        outcome NOT IN ('Failed', 'TimedOut', 'LeaseExpired') OR error_message IS NOT NULL
    ),
    CONSTRAINT task_attempts_only_an_end_is_late CHECK (NOT late OR outcome IS NOT NULL)
) WITH (
    -- The end of an attempt changes no indexed column: with room in the page it is a heap-only update.
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 50000
);
COMMENT ON TABLE task_attempts IS 'The history of a task: one row for each attempt, with how it ended.';
COMMENT ON COLUMN task_attempts.outcome IS 'NULL: it runs.';
COMMENT ON COLUMN task_attempts.late IS 'Its reply came after it had been given up, and was still accepted.';

CREATE TABLE operator_state (
    org_id uuid NOT NULL,
    job_id uuid NOT NULL,
    state_key text NOT NULL DEFAULT 'default',
    state jsonb NOT NULL DEFAULT '{}',
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, job_id, state_key),
    CONSTRAINT operator_state_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
) WITH (fillfactor = 50);
COMMENT ON TABLE operator_state IS 'What an operator must remember between tasks; saved in the transaction of a completion.';
COMMENT ON COLUMN operator_state.state_key IS 'For a job that needs more than one.';
