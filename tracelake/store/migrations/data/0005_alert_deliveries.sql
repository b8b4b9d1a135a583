-- What is to be sent of alerts: one item for each event and channel, made by workers and ended by the delivery process.

CREATE SCHEMA alerts;
COMMENT ON SCHEMA alerts IS 'Work items of deliveries: workers add them, the delivery process alone sees and ends them.';

CREATE TYPE alerts.delivery_status AS ENUM ('Pending', 'Sent', 'Failed', 'Stale');
COMMENT ON TYPE alerts.delivery_status IS 'To be sent; taken by the receiver; given up; too old when its turn came.';

CREATE TABLE alerts.deliveries (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    alert_definition_id uuid NOT NULL,
    alert_name text NOT NULL,
    dedupe_key text NOT NULL,
    channel text NOT NULL,
    severity text NOT NULL,
    event_time timestamptz NOT NULL,
    event jsonb NOT NULL,
    producer_task_id uuid NOT NULL,
    status alerts.delivery_status NOT NULL DEFAULT 'Pending',
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),
    lease_token uuid,
    at_any_age boolean NOT NULL DEFAULT false,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    CONSTRAINT deliveries_once UNIQUE (org_id, alert_definition_id, dedupe_key, channel),
    CONSTRAINT deliveries_event_is_an_object CHECK (jsonb_typeof(event) = 'object'),
    CONSTRAINT deliveries_attempts_are_counted CHECK (attempts >= 0),
    CONSTRAINT deliveries_settled_when_ended CHECK ((status = 'Pending') = (settled_at IS NULL)),
    CONSTRAINT deliveries_only_pending_is_leased CHECK (lease_token IS NULL OR status = 'Pending')
);
COMMENT ON TABLE alerts.deliveries IS 'An alert on its way to one channel. However often it is routed, there is one.';
COMMENT ON COLUMN alerts.deliveries.id IS 'Made from the unique key, and told to the receiver, who may get it twice.';
COMMENT ON COLUMN alerts.deliveries.org_id IS 'Of the task that routed it; never from a row.';
COMMENT ON COLUMN alerts.deliveries.event IS 'The row of alert_events as it was when it was routed: what is sent.';
COMMENT ON COLUMN alerts.deliveries.due_at IS 'When it may be taken; of one that is taken, when its lease ends.';
COMMENT ON COLUMN alerts.deliveries.at_any_age IS 'A person asked for it again: it is sent though it is old.';
CREATE INDEX idx_deliveries_due ON alerts.deliveries (due_at) WHERE status = 'Pending';
COMMENT ON INDEX alerts.idx_deliveries_due IS 'What is to be sent next.';
CREATE INDEX idx_deliveries_of_org ON alerts.deliveries (org_id, created_at DESC, id DESC);
COMMENT ON INDEX alerts.idx_deliveries_of_org IS 'Pages of an organisation''s deliveries, the newest first.';

CREATE FUNCTION alerts.tell_of_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('alert_deliveries', '');
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION alerts.tell_of_deliveries IS 'Wakes whoever delivers.';
CREATE TRIGGER deliveries_wake AFTER INSERT ON alerts.deliveries
    FOR EACH STATEMENT EXECUTE FUNCTION alerts.tell_of_deliveries();
