-- Cron sources: when each is next due, and what became of every slot of its schedule.

CREATE TABLE source_schedules (
    job_id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    decided_until timestamptz NOT NULL,
    due_at timestamptz,
    CONSTRAINT source_schedules_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
) WITH (fillfactor = 50);
COMMENT ON TABLE source_schedules IS 'A cron source of the active version of its DAG, and when it is next due.';
COMMENT ON COLUMN source_schedules.decided_until IS 'The last slot that was decided, or when the schedule began to hold.';
COMMENT ON COLUMN source_schedules.due_at IS 'When its next slot is to be decided; NULL: the schedule has no more slots.';
CREATE INDEX idx_source_schedules_due ON source_schedules (due_at) WHERE due_at IS NOT NULL;
COMMENT ON INDEX idx_source_schedules_due IS 'Which schedules are due.';

CREATE TYPE slot_reason AS ENUM ('missed', 'beyond_catch_up', 'overlap', 'paused');
COMMENT ON TYPE slot_reason IS
    'Why a slot did not fire: it was due while nothing ran; longer ago than `catch_up`; an earlier task had not ended; the source was paused.';

CREATE TABLE source_slots (
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    job_name text NOT NULL,
    slot timestamptz NOT NULL,
    job_id uuid NOT NULL,
    reason slot_reason,
    task_id uuid,
    decided_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name, job_name, slot),
    CONSTRAINT source_slots_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT source_slots_only_a_fire_has_a_task CHECK (reason IS NULL OR task_id IS NULL)
);
COMMENT ON TABLE source_slots IS
    'A slot of a cron source, by its nominal time: it fired once, or did not fire for a reason. By name, so that it fires once however often its DAG is deployed.';
COMMENT ON COLUMN source_slots.job_id IS 'The job of the version that was active when it was decided.';
COMMENT ON COLUMN source_slots.reason IS 'Why it did not fire; NULL: it fired.';
COMMENT ON COLUMN source_slots.task_id IS 'The task that it made; NULL: it did not fire, or was only an event.';

CREATE INDEX idx_source_slots_age ON source_slots (decided_at);
COMMENT ON INDEX idx_source_slots_age IS 'Which slots are old enough to be pruned.';

CREATE FUNCTION slot_key(slot timestamptz) RETURNS text
LANGUAGE sql STABLE
RETURN 'slot:' || to_char(slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
COMMENT ON FUNCTION slot_key IS 'The dedupe key of the task of a slot.';

CREATE FUNCTION fire_run(org_id uuid, dag_name text, job_name text, key text) RETURNS uuid
LANGUAGE sql STABLE
RETURN encode(substring(sha256(convert_to(jsonb_build_array('fire', org_id, dag_name, job_name, key)::text, 'UTF8'))
                        FROM 1 FOR 16), 'hex')::uuid;
COMMENT ON FUNCTION fire_run IS 'What tells the events of one fire of a source from those of another: the same fire gives the same id.';

CREATE FUNCTION fire_of(kind text, slot timestamptz, delivery_id uuid, body jsonb, scope jsonb) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_build_object(
    'fired', jsonb_strip_nulls(jsonb_build_object('kind', kind, 'slot', slot, 'delivery_id', delivery_id))
             || CASE WHEN body IS NULL THEN '{}' ELSE jsonb_build_object('body', body) END,
    'scope', coalesce(scope, '{}'));
COMMENT ON FUNCTION fire_of IS 'What a task of a source is created for (`tasks.input_versions`): what fired it, and for which part.';

-- Schedules that were deployed while nothing fired them begin now.
INSERT INTO source_schedules (job_id, org_id, decided_until, due_at)
SELECT j.id, j.org_id, now(), now()
  FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE j.source ->> 'kind' = 'cron';
