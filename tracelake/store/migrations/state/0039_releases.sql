-- Releases: DAG versions that are built beside the active ones and become active together.

ALTER TABLE dag_versions ADD COLUMN foreign_generations jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN dag_versions.foreign_generations IS
    'The generations of datasets of other DAGs, by name, that decide the generations of this version.';
ALTER TABLE dag_versions
    DROP CONSTRAINT dag_versions_content_once,
    ADD CONSTRAINT dag_versions_content_once UNIQUE (org_id, dag_name, yaml_hash, foreign_generations);

CREATE TABLE dag_activations (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    dag_version_id uuid NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    until timestamptz,
    CONSTRAINT dag_activations_version_of_same_dag
        FOREIGN KEY (org_id, dag_name, dag_version_id) REFERENCES dag_versions (org_id, dag_name, id),
    CONSTRAINT dag_activations_end_after_they_begin CHECK (until >= since)
);
COMMENT ON TABLE dag_activations IS 'Which version of a DAG was active when; a trigger on dag_current_versions maintains it.';
COMMENT ON COLUMN dag_activations.until IS 'When another version was activated, or none; NULL: it is active.';
CREATE UNIQUE INDEX idx_dag_activations_active ON dag_activations (org_id, dag_name) WHERE until IS NULL;
COMMENT ON INDEX idx_dag_activations_active IS 'One version of a DAG is active at a time.';
CREATE INDEX idx_dag_activations_since ON dag_activations (org_id, dag_name, since);
COMMENT ON INDEX idx_dag_activations_since IS 'The version that was active at a time.';

CREATE FUNCTION record_activation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.dag_version_id = OLD.dag_version_id THEN
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        UPDATE dag_activations SET until = greatest(now(), since)
         WHERE org_id = OLD.org_id AND dag_name = OLD.dag_name AND until IS NULL;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO dag_activations (org_id, dag_name, dag_version_id) VALUES (NEW.org_id, NEW.dag_name, NEW.dag_version_id);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION record_activation IS 'Maintains dag_activations when the active version of a DAG changes.';
CREATE TRIGGER dag_current_versions_record AFTER INSERT OR UPDATE OR DELETE ON dag_current_versions
    FOR EACH ROW EXECUTE FUNCTION record_activation();
INSERT INTO dag_activations (org_id, dag_name, dag_version_id, since)
SELECT org_id, dag_name, dag_version_id, updated_at FROM dag_current_versions;

CREATE INDEX idx_commits_generation ON commits (dataset_version, number);
COMMENT ON INDEX idx_commits_generation IS 'The first and the last commit of a generation.';

CREATE TYPE release_state AS ENUM ('Building', 'Ready', 'Serving', 'Standby', 'Retired', 'Abandoned');
COMMENT ON TYPE release_state IS
    'Serving: its versions are active. Standby: they were, and can be again while their generations are kept; then Retired.';

CREATE TABLE releases (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    state release_state NOT NULL DEFAULT 'Building',
    plan_hash text NOT NULL,
    when_ready boolean NOT NULL,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    check_at timestamptz NOT NULL DEFAULT now(),
    ready_at timestamptz,
    promoted_at timestamptz,
    ended_at timestamptz,
    message text,
    CONSTRAINT releases_id_within_org UNIQUE (org_id, id),
    CONSTRAINT releases_author_of_same_org FOREIGN KEY (org_id, created_by) REFERENCES users (org_id, id),
    CONSTRAINT releases_serve_after_promotion CHECK (state NOT IN ('Serving', 'Standby', 'Retired') OR promoted_at IS NOT NULL)
);
COMMENT ON TABLE releases IS 'DAG versions that are built together beside the active ones, and become active in one transaction.';
COMMENT ON COLUMN releases.plan_hash IS 'Of the plan that it carries out.';
COMMENT ON COLUMN releases.when_ready IS 'It is promoted by itself as soon as it is ready.';
COMMENT ON COLUMN releases.check_at IS 'When its progress is looked at next.';
COMMENT ON COLUMN releases.message IS 'Why it was abandoned or could not be promoted.';
CREATE INDEX idx_releases_open ON releases (check_at) WHERE state = 'Building' OR state = 'Ready' AND when_ready;
COMMENT ON INDEX idx_releases_open IS 'Releases whose progress is due to be looked at.';
CREATE INDEX idx_releases_newest ON releases (org_id, created_at DESC);
COMMENT ON INDEX idx_releases_newest IS 'The releases of an organisation, the newest first.';

CREATE TABLE release_members (
    release_id uuid NOT NULL,
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    dag_version_id uuid NOT NULL,
    former_version_id uuid,
    builds boolean NOT NULL DEFAULT true,
    PRIMARY KEY (release_id, dag_name),
    CONSTRAINT release_members_release_of_same_org FOREIGN KEY (org_id, release_id) REFERENCES releases (org_id, id),
    CONSTRAINT release_members_version_of_same_dag
        FOREIGN KEY (org_id, dag_name, dag_version_id) REFERENCES dag_versions (org_id, dag_name, id),
    CONSTRAINT release_members_former_of_same_dag
        FOREIGN KEY (org_id, dag_name, former_version_id) REFERENCES dag_versions (org_id, dag_name, id)
);
COMMENT ON TABLE release_members IS 'A DAG version of a release, and the version that was active when the release was planned.';
COMMENT ON COLUMN release_members.former_version_id IS 'The version that a rollback makes active again; NULL: none was active.';
COMMENT ON COLUMN release_members.builds IS 'Its jobs run beside those of the active version: the release is Building or Ready.';
CREATE UNIQUE INDEX idx_release_members_builds ON release_members (org_id, dag_name) WHERE builds;
COMMENT ON INDEX idx_release_members_builds IS 'One release builds a DAG at a time.';
CREATE INDEX idx_release_members_version ON release_members (dag_version_id) WHERE builds;
COMMENT ON INDEX idx_release_members_version IS 'The release that builds a version.';

CREATE VIEW running_versions AS
SELECT org_id, dag_name, dag_version_id FROM dag_current_versions
UNION ALL
SELECT org_id, dag_name, dag_version_id FROM release_members WHERE builds;
COMMENT ON VIEW running_versions IS 'Versions whose tasks run: active ones, and those that a release builds.';

CREATE FUNCTION version_read(reader uuid, reader_dag text, org uuid, producer_dag text) RETURNS uuid
LANGUAGE sql STABLE AS $$
SELECT CASE WHEN producer_dag = reader_dag THEN reader ELSE coalesce(
           (SELECT theirs.dag_version_id
              FROM release_members mine
              JOIN release_members theirs ON theirs.release_id = mine.release_id AND theirs.dag_name = producer_dag
             WHERE mine.dag_version_id = reader AND mine.builds),
           (SELECT c.dag_version_id FROM dag_current_versions c WHERE c.org_id = org AND c.dag_name = producer_dag),
           reader) END
$$;
COMMENT ON FUNCTION version_read IS
    'The version of a DAG whose generations a version reads: its own within its DAG; else the one of its release while it is built, or the active one.';

CREATE FUNCTION writes_own_datasets(outputs uuid[]) RETURNS boolean
LANGUAGE sql STABLE AS $$
SELECT outputs <> '{}' AND NOT EXISTS (
    SELECT FROM datasets d WHERE d.id = ANY (outputs) AND d.producer_job_name IS NULL)
$$;
COMMENT ON FUNCTION writes_own_datasets IS
    'Whether a job with these outputs has no effect outside its own generations: no declared dataset, no delivery.';

CREATE OR REPLACE FUNCTION describe_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lineage_id := job_lineage(NEW.dag_version_id, NEW.dag_name, NEW.name, NEW.output_datasets, NEW.config_hash);
    NEW.takes_history := NEW.replay OR writes_own_datasets(NEW.output_datasets);
    RETURN NEW;
END
$$;

CREATE OR REPLACE VIEW job_reads AS
SELECT DISTINCT j.id AS job_id, j.org_id, j.dag_name, j.name AS job_name, j.lineage_id, j.makes_whole, j.takes_history,
       j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime, i.dataset_uuid, served.dataset_version
  FROM jobs j
  JOIN job_inputs i ON i.job_id = j.id AND i.triggers
  JOIN datasets d ON d.id = i.dataset_uuid
  JOIN dag_version_datasets served
         ON served.dag_version_id = version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name)
        AND served.dataset_uuid = i.dataset_uuid
 WHERE j.activation = 'reactive';

CREATE OR REPLACE VIEW described_tasks AS
SELECT t.id AS task_id, t.org_id, t.job_id, t.status::text, t.attempt, t.lease_token, t.lease_expires_at, t.timeout_seconds,
       t.input_versions::text AS trigger, t.invalidation_id,
       CASE WHEN j.bootstrapped_at IS NULL THEN j.bootstrap END::text AS bootstrap,
       (SELECT jsonb_agg(input_ref(i.dataset_uuid, v.id, CASE WHEN r.task_id IS NULL THEN h.last_commit ELSE r.input_commit END,
                                   d.name, i.name, v.storage_location, i.where_tree, i.triggers) ORDER BY i.position)
          FROM job_inputs i
          JOIN datasets d ON d.id = i.dataset_uuid
          LEFT JOIN task_inputs r ON r.task_id = t.id AND r.attempt = t.attempt AND r.input_dataset_uuid = i.dataset_uuid
          LEFT JOIN dag_version_datasets served
                 ON served.dag_version_id = version_read(j.dag_version_id, j.dag_name, d.org_id, d.producer_dag_name)
                AND served.dataset_uuid = i.dataset_uuid
          JOIN dataset_versions v ON v.id = coalesce(r.input_dataset_version, served.dataset_version)
          LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
         WHERE i.job_id = t.job_id)::text AS inputs,
       (SELECT s.state FROM operator_state s
         WHERE s.org_id = t.org_id AND s.job_id = t.job_id AND s.state_key = 'default')::text AS state,
       (SELECT jsonb_object_agg(d.id, d.name) FROM datasets d WHERE d.id = ANY (j.output_datasets))::text AS names
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id;
