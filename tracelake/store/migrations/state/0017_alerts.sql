-- Alerts: what is watched for, and where it is told. The alerts themselves are rows of a buffered dataset.

CREATE TYPE alert_severity AS ENUM ('info', 'warning', 'critical');
CREATE TYPE alert_channel_kind AS ENUM ('webhook');

CREATE TABLE alert_channels (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    name text NOT NULL,
    kind alert_channel_kind NOT NULL,
    url text NOT NULL,
    secret text NOT NULL,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT alert_channels_name_once UNIQUE (org_id, name),
    CONSTRAINT alert_channels_id_within_org UNIQUE (org_id, id),
    CONSTRAINT alert_channels_author_of_same_org FOREIGN KEY (org_id, created_by) REFERENCES users (org_id, id),
    CONSTRAINT alert_channels_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT alert_channels_url_is_of_the_web CHECK (url ~ '^https?://'),
    CONSTRAINT alert_channels_secret_is_long CHECK (length(secret) >= 16)
);
COMMENT ON TABLE alert_channels IS 'Where alerts are sent. Only the delivery process is ever told address and secret.';
COMMENT ON COLUMN alert_channels.secret IS 'What deliveries are signed with; it is written and never shown to anybody again.';

CREATE TABLE alert_definitions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id uuid NOT NULL REFERENCES orgs (id),
    name text NOT NULL,
    description text NOT NULL DEFAULT '',
    severity alert_severity NOT NULL,
    enabled boolean NOT NULL DEFAULT true,
    params jsonb NOT NULL DEFAULT '{}',
    max_age_seconds integer,
    created_by uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT alert_definitions_name_once UNIQUE (org_id, name),
    CONSTRAINT alert_definitions_id_within_org UNIQUE (org_id, id),
    CONSTRAINT alert_definitions_author_of_same_org FOREIGN KEY (org_id, created_by) REFERENCES users (org_id, id),
    CONSTRAINT alert_definitions_name_is_snake CHECK (name ~ '^[a-z][a-z0-9_]{0,127}$'),
    CONSTRAINT alert_definitions_params_are_an_object CHECK (jsonb_typeof(params) = 'object'),
    CONSTRAINT alert_definitions_max_age_is_positive CHECK (max_age_seconds >= 1)
);
COMMENT ON TABLE alert_definitions IS 'What is watched for: the parameters that user code evaluates, and how its alerts are told.';
COMMENT ON COLUMN alert_definitions.params IS 'Handed to the code that evaluates it, as it is.';
COMMENT ON COLUMN alert_definitions.max_age_seconds IS 'An alert about something older is not sent; NULL: none is too old.';

CREATE TABLE alert_definition_channels (
    org_id uuid NOT NULL,
    alert_definition_id uuid NOT NULL,
    channel_id uuid NOT NULL,
    PRIMARY KEY (alert_definition_id, channel_id),
    CONSTRAINT alert_definition_channels_definition_of_same_org
        FOREIGN KEY (org_id, alert_definition_id) REFERENCES alert_definitions (org_id, id) ON DELETE CASCADE,
    CONSTRAINT alert_definition_channels_channel_of_same_org
        FOREIGN KEY (org_id, channel_id) REFERENCES alert_channels (org_id, id)
);
COMMENT ON TABLE alert_definition_channels IS 'Which channels an alert is sent to. A channel that is used cannot be removed.';
CREATE INDEX idx_alert_definition_channels_of_channel ON alert_definition_channels (org_id, channel_id);
COMMENT ON INDEX idx_alert_definition_channels_of_channel IS 'Whether a channel is still used.';
