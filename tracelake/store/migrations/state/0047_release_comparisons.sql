-- Datasets that a release builds anew are compared with those that serve, by the Query service; what was found is stored
-- with the release. Limits in the YAML of a DAG keep a release from being promoted.

ALTER TABLE releases ADD COLUMN promotion_asked_at timestamptz;
COMMENT ON COLUMN releases.promotion_asked_at IS 'When its promotion was asked for last, if that waits for comparisons; NULL: it is as old as ready_at.';

CREATE TYPE comparison_state AS ENUM ('Idle', 'Waiting', 'Running', 'Done', 'Failed', 'Skipped');

CREATE TABLE release_comparisons (
    release_id uuid NOT NULL,
    org_id uuid NOT NULL,
    dataset_uuid uuid NOT NULL,
    former_version uuid NOT NULL,
    dataset_version uuid NOT NULL,
    limits jsonb NOT NULL DEFAULT '{}',
    state comparison_state NOT NULL DEFAULT 'Idle',
    requested_at timestamptz,
    due_at timestamptz,
    taken_at timestamptz,
    lease_token uuid,
    attempts integer NOT NULL DEFAULT 0,
    steps integer NOT NULL DEFAULT 0,
    steps_planned integer NOT NULL DEFAULT 0,
    former_commit bigint,
    commit bigint,
    result jsonb,
    error text,
    PRIMARY KEY (release_id, dataset_uuid),
    CONSTRAINT release_comparisons_release_of_same_org FOREIGN KEY (org_id, release_id) REFERENCES releases (org_id, id),
    CONSTRAINT release_comparisons_former_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, former_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT release_comparisons_version_of_same_dataset
        FOREIGN KEY (org_id, dataset_uuid, dataset_version) REFERENCES dataset_versions (org_id, dataset_uuid, id),
    CONSTRAINT release_comparisons_limits_is_a_map CHECK (jsonb_typeof(limits) = 'object'),
    CONSTRAINT release_comparisons_open_is_due CHECK (state NOT IN ('Waiting', 'Running') OR due_at IS NOT NULL AND requested_at IS NOT NULL),
    CONSTRAINT release_comparisons_running_has_lease CHECK (state <> 'Running' OR lease_token IS NOT NULL AND taken_at IS NOT NULL),
    CONSTRAINT release_comparisons_done_has_result CHECK (state <> 'Done' OR result IS NOT NULL),
    CONSTRAINT release_comparisons_failed_has_error CHECK (state <> 'Failed' OR error IS NOT NULL)
);
COMMENT ON TABLE release_comparisons IS 'A dataset that a release builds anew, compared with the generation that served when it was planned.';
COMMENT ON COLUMN release_comparisons.former_version IS 'The generation that served when the release was planned: side A.';
COMMENT ON COLUMN release_comparisons.dataset_version IS 'The generation that the release builds: side B.';
COMMENT ON COLUMN release_comparisons.limits IS 'cutover of the job in the new version: counts, or percentages as text.';
COMMENT ON COLUMN release_comparisons.state IS 'Skipped: its rows are in a Postgres table, of which there is one state only.';
COMMENT ON COLUMN release_comparisons.due_at IS 'Waiting: when it may be taken. Running: when its lease ends, and it may be taken again.';
COMMENT ON COLUMN release_comparisons.taken_at IS 'When it was taken last: what was committed before is compared.';
COMMENT ON COLUMN release_comparisons.lease_token IS 'Of the process that compares; the report of another is refused.';
COMMENT ON COLUMN release_comparisons.attempts IS 'How often it was taken since it was requested.';
COMMENT ON COLUMN release_comparisons.steps IS 'Queries that have been answered, of steps_planned.';
COMMENT ON COLUMN release_comparisons.former_commit IS 'The last commit of side A when it was taken; NULL: there was none.';
COMMENT ON COLUMN release_comparisons.commit IS 'The last commit of side B when it was taken; NULL: there was none.';
COMMENT ON COLUMN release_comparisons.result IS 'Figures without values, of the commits that are named in it; kept until the next ones are there.';
COMMENT ON COLUMN release_comparisons.error IS 'Why the last attempt failed.';
CREATE INDEX idx_release_comparisons_due ON release_comparisons (due_at) WHERE state IN ('Waiting', 'Running');
COMMENT ON INDEX idx_release_comparisons_due IS 'Comparisons that are to be made.';

CREATE FUNCTION last_commit_of(dataset uuid, version uuid) RETURNS bigint
LANGUAGE sql STABLE AS $$
SELECT c.number FROM commits c WHERE c.dataset_uuid = dataset AND c.dataset_version = version ORDER BY c.number DESC LIMIT 1
$$;
COMMENT ON FUNCTION last_commit_of IS 'The last commit of a generation; NULL: it has none.';

CREATE FUNCTION is_current(c release_comparisons) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT c.state = 'Done' AND c.former_commit IS NOT DISTINCT FROM last_commit_of(c.dataset_uuid, c.former_version)
   AND c.commit IS NOT DISTINCT FROM last_commit_of(c.dataset_uuid, c.dataset_version)
$$;
COMMENT ON FUNCTION is_current IS 'Whether nothing was committed to either side since it was compared.';

CREATE FUNCTION is_idle(release releases) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT NOT EXISTS (
           SELECT FROM release_members m
             JOIN jobs j ON j.dag_version_id = m.dag_version_id
             JOIN tasks t ON t.job_id = j.id
            WHERE m.release_id = release.id
              AND (t.status IN ('Queued', 'Running') OR t.status = 'Failed' AND t.next_retry_at IS NOT NULL))
   AND NOT EXISTS (
           SELECT FROM release_members m
             JOIN jobs j ON j.dag_version_id = m.dag_version_id
             JOIN catch_ups c ON c.job_id = j.id
            WHERE m.release_id = release.id AND c.walked_at IS NULL)
$$;
COMMENT ON FUNCTION is_idle IS 'Whether no task of a release is open, and every input of its jobs has been compared.';
