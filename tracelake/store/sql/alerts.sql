-- Alert definitions and channels, and what tasks and the delivery process read of them.

-- name: list_definitions
-- An organisation's definitions, or the one with this name ($2).
SELECT d.id AS alert_definition_id, d.name, d.severity::text, d.description, d.enabled, d.params,
       d.max_age_seconds, coalesce(u.email, u.external_id) AS created_by, d.created_at, d.updated_at,
       ARRAY(SELECT c.name FROM alert_definition_channels l JOIN alert_channels c ON c.id = l.channel_id
              WHERE l.alert_definition_id = d.id ORDER BY c.name) AS channels
  FROM alert_definitions d
  LEFT JOIN users u ON u.org_id = d.org_id AND u.id = d.created_by
 WHERE d.org_id = $1 AND ($2::text IS NULL OR d.name = $2)
 ORDER BY d.name;

-- name: lock_org
-- Serializes the creation of definitions of an organisation, which counts them first.
SELECT pg_advisory_xact_lock(hashtextextended('trace alerts ' || $1::uuid::text, 0));

-- name: count_definitions
-- How many definitions an organisation has.
SELECT count(*) FROM alert_definitions WHERE org_id = $1;

-- name: create_definition
-- Inserts a definition; returns no row if the name is taken.
INSERT INTO alert_definitions (org_id, name, severity, description, enabled, params, max_age_seconds, created_by)
VALUES ($1, $2, $3::text::alert_severity, $4, $5, $6::jsonb, $7, $8)
ON CONFLICT (org_id, name) DO NOTHING
RETURNING id;

-- name: update_definition
-- Changes a definition: NULL leaves a value as it is; $7 says whether $8 is a new value.
UPDATE alert_definitions
   SET severity = coalesce($3::text::alert_severity, severity),
       description = coalesce($4, description),
       enabled = coalesce($5, enabled),
       params = coalesce($6::jsonb, params),
       max_age_seconds = CASE WHEN $7::boolean THEN $8::integer ELSE max_age_seconds END,
       updated_at = now()
 WHERE org_id = $1 AND name = $2
RETURNING id;

-- name: unlink_channels
-- Deletes the channels of a definition, before new ones are linked.
DELETE FROM alert_definition_channels WHERE org_id = $1 AND alert_definition_id = $2;

-- name: link_channels
-- Links channels to a definition by name; returns the names that exist.
WITH existing AS (
    SELECT c.id, c.name FROM alert_channels c WHERE c.org_id = $1 AND c.name = ANY ($3::text[])
), linked AS (
    INSERT INTO alert_definition_channels (org_id, alert_definition_id, channel_id)
    SELECT $1, $2, e.id FROM existing e
)
SELECT name FROM existing;

-- name: delete_definition
-- Deletes a definition but not its channels. Its pending deliveries are not sent.
DELETE FROM alert_definitions WHERE org_id = $1 AND name = $2 RETURNING id;

-- name: list_channel_names
-- The channels that a definition may name.
SELECT name FROM alert_channels WHERE org_id = $1 ORDER BY name;

-- name: list_definition_names
-- The definitions that a job may name.
SELECT name FROM alert_definitions WHERE org_id = $1 ORDER BY name;

-- name: list_channels
-- An organisation's channels, or the one with this name ($2), without the secret.
SELECT c.name, c.kind::text, c.url, coalesce(u.email, u.external_id) AS created_by, c.created_at, c.updated_at,
       ARRAY(SELECT d.name FROM alert_definition_channels l JOIN alert_definitions d ON d.id = l.alert_definition_id
              WHERE l.org_id = c.org_id AND l.channel_id = c.id ORDER BY d.name) AS used_by
  FROM alert_channels c
  LEFT JOIN users u ON u.org_id = c.org_id AND u.id = c.created_by
 WHERE c.org_id = $1 AND ($2::text IS NULL OR c.name = $2)
 ORDER BY c.name;

-- name: create_channel
-- Inserts a channel; returns no row if the name is taken.
INSERT INTO alert_channels (org_id, name, kind, url, secret, created_by)
VALUES ($1, $2, $3::text::alert_channel_kind, $4, $5, $6)
ON CONFLICT (org_id, name) DO NOTHING
RETURNING id;

-- name: update_channel
-- Changes a channel: NULL leaves a value as it is.
UPDATE alert_channels SET url = coalesce($3, url), secret = coalesce($4, secret), updated_at = now()
 WHERE org_id = $1 AND name = $2
RETURNING id;

-- name: delete_channel
-- Deletes a channel; its foreign key refuses that while a definition uses it.
DELETE FROM alert_channels WHERE org_id = $1 AND name = $2 RETURNING id;

-- name: list_alerts_of_tasks
-- For tasks that were claimed together: the enabled definitions of their organisation that their job names, or, where
-- the names are NULL, all enabled ones with their channels.
SELECT a.task_id, d.id AS alert_definition_id, d.name, d.severity::text, d.params,
       CASE WHEN a.names IS NULL THEN ARRAY(
           SELECT c.name FROM alert_definition_channels l JOIN alert_channels c ON c.id = l.channel_id
            WHERE l.alert_definition_id = d.id ORDER BY c.name) ELSE '{}' END AS channels
  FROM jsonb_to_recordset($1::jsonb) AS a (task_id uuid, org_id uuid, names jsonb)
  JOIN alert_definitions d ON d.org_id = a.org_id AND d.enabled
 WHERE a.names IS NULL OR a.names ? d.name
 ORDER BY d.name;

-- name: list_failures
-- The alert with this name ($2) for tasks that have failed for good, one row per channel.
SELECT t.id AS task_id, t.org_id, d.id AS alert_definition_id, d.name AS alert_name, d.severity::text, c.name AS channel,
       t.completed_at AS failed_at, j.dag_name AS dag, j.name AS job, t.attempt, t.fault::text, t.error_message AS error
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  JOIN alert_definitions d ON d.org_id = t.org_id AND d.name = $2 AND d.enabled
  JOIN alert_definition_channels l ON l.alert_definition_id = d.id
  JOIN alert_channels c ON c.id = l.channel_id
 WHERE t.id = ANY ($1::uuid[]) AND (t.status = 'Failed') IS TRUE AND t.next_retry_at IS NULL;

-- name: list_targets
-- The address and secret of channels, for the delivery process.
SELECT a.org_id, a.alert_definition_id, a.channel, d.enabled, c.url, c.secret, d.max_age_seconds
  FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS a (org_id, alert_definition_id, channel)
  JOIN alert_definitions d ON d.org_id = a.org_id AND d.id = a.alert_definition_id
  JOIN alert_channels c ON c.org_id = a.org_id AND c.name = a.channel
  JOIN alert_definition_channels l ON l.alert_definition_id = d.id AND l.channel_id = c.id;
