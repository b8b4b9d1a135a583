-- Work that a user asks for over a range of the past, or over everything that jobs lack: created in batches, within a budget.

CREATE TYPE backfill_status AS ENUM ('Running', 'Paused', 'Done', 'Canceled');

CREATE TABLE backfills (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    dag_name text NOT NULL,
    job_name text,
    block_range int8range,
    newest_first boolean NOT NULL DEFAULT false,
    again boolean NOT NULL DEFAULT false,
    budget_tasks bigint,
    budget_until timestamptz,
    status backfill_status NOT NULL DEFAULT 'Running',
    ended_because text,
    planned bigint NOT NULL,
    created bigint NOT NULL DEFAULT 0,
    place jsonb NOT NULL DEFAULT '{}',
    due_at timestamptz NOT NULL DEFAULT now(),
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    CONSTRAINT backfills_user_of_same_org FOREIGN KEY (org_id, created_by) REFERENCES users (org_id, id),
    CONSTRAINT backfills_range_is_finite CHECK (is_block_range(block_range)),
    CONSTRAINT backfills_budget_is_positive CHECK (budget_tasks >= 1),
    CONSTRAINT backfills_counts_are_not_negative CHECK (planned >= 0 AND created >= 0),
    CONSTRAINT backfills_place_is_object CHECK (jsonb_typeof(place) = 'object'),
    CONSTRAINT backfills_ended_says_when CHECK ((status IN ('Done', 'Canceled')) = (ended_at IS NOT NULL)),
    CONSTRAINT backfills_ended_says_why CHECK ((ended_at IS NULL) = (ended_because IS NULL))
);
COMMENT ON TABLE backfills IS 'A backfill: what it covers, its budget, and how far it has come.';
COMMENT ON COLUMN backfills.job_name IS 'NULL: all jobs of the DAG that read something.';
COMMENT ON COLUMN backfills.block_range IS 'Half-open; NULL: everything that the jobs lack.';
COMMENT ON COLUMN backfills.again IS 'Also what was processed before it began.';
COMMENT ON COLUMN backfills.budget_tasks IS 'It ends when it has created so many tasks.';
COMMENT ON COLUMN backfills.budget_until IS 'It ends at this time.';
COMMENT ON COLUMN backfills.planned IS 'Partitions that were to be processed when it began; of a source, blocks.';
COMMENT ON COLUMN backfills.created IS 'How many of them have got a task; of a source, blocks whose event was sent.';
COMMENT ON COLUMN backfills.place IS 'The input and the place in it where the next batch begins.';
COMMENT ON COLUMN backfills.due_at IS 'When the next batch may begin.';
CREATE INDEX idx_backfills_running ON backfills (due_at) WHERE status = 'Running';
CREATE INDEX idx_backfills_org ON backfills (org_id, id);
COMMENT ON INDEX idx_backfills_running IS 'Backfills that have more to create.';
COMMENT ON INDEX idx_backfills_org IS 'The backfills of an organisation, newest last.';
