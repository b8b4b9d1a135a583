-- Webhook sources: what was delivered to them, and the ids by which a repeated delivery is recognised.

CREATE TABLE source_deliveries (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    number bigint GENERATED ALWAYS AS IDENTITY,
    org_id uuid NOT NULL,
    dag_name text NOT NULL,
    job_name text NOT NULL,
    job_id uuid NOT NULL,
    delivery_key text NOT NULL,
    body jsonb,
    size_bytes integer NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    held boolean NOT NULL DEFAULT false,
    task_id uuid,
    expires_at timestamptz,
    CONSTRAINT source_deliveries_once UNIQUE (org_id, dag_name, job_name, delivery_key),
    CONSTRAINT source_deliveries_job_of_same_org FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id),
    CONSTRAINT source_deliveries_key_says_something CHECK (delivery_key <> ''),
    CONSTRAINT source_deliveries_size_is_not_negative CHECK (size_bytes >= 0),
    CONSTRAINT source_deliveries_held_has_no_task CHECK (NOT held OR task_id IS NULL)
);
COMMENT ON TABLE source_deliveries IS
    'A signed call to a webhook source that was accepted, once by its key; by the names of DAG and job, so that a deploy changes nothing.';
COMMENT ON COLUMN source_deliveries.number IS 'Rises with each delivery: the cursor of its events, and the order of those that are held.';
COMMENT ON COLUMN source_deliveries.job_id IS 'The job of the version that was active when it was accepted.';
COMMENT ON COLUMN source_deliveries.delivery_key IS
    'What identifies it among what was signed: the sender''s id, or the SHA-256 of the body.';
COMMENT ON COLUMN source_deliveries.body IS 'The JSON of the body; NULL: it was pruned, and only the key is kept.';
COMMENT ON COLUMN source_deliveries.held IS 'It was accepted while the source was paused, and fires when that is resumed.';
COMMENT ON COLUMN source_deliveries.task_id IS 'The task that it made; NULL: it is held, or was only an event.';
COMMENT ON COLUMN source_deliveries.expires_at IS
    'When its key may be deleted, because what was signed is then too old to be accepted; NULL: never, the scheme signs no time.';
CREATE INDEX idx_source_deliveries_held ON source_deliveries (org_id, dag_name, job_name, number) WHERE held;
COMMENT ON INDEX idx_source_deliveries_held IS 'What fires when a source is resumed.';
CREATE INDEX idx_source_deliveries_bodies ON source_deliveries (received_at) WHERE body IS NOT NULL;
COMMENT ON INDEX idx_source_deliveries_bodies IS 'Which bodies are old enough to be pruned.';
CREATE INDEX idx_source_deliveries_expiry ON source_deliveries (expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON INDEX idx_source_deliveries_expiry IS 'Which keys may be deleted.';
