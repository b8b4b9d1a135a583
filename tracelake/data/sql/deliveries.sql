-- Work items of the delivery process, added by workers.

-- name: add_items
-- Adds each item once, however often it is routed; existing ones are unchanged. Returns how many were new.
INSERT INTO alerts.deliveries
    (id, org_id, producer_task_id, alert_definition_id, alert_name, dedupe_key, channel, severity, event_time, event)
SELECT i.id, %(org)s, %(task)s, i.alert, i.alert_name, i.dedupe_key, i.channel, i.severity, i.event_time, i.event
  FROM unnest(%(ids)s::uuid[], %(alerts)s::uuid[], %(names)s::text[], %(keys)s::text[], %(channels)s::text[],
              %(severities)s::text[], %(times)s::timestamptz[], %(events)s::jsonb[])
    AS i (id, alert, alert_name, dedupe_key, channel, severity, event_time, event)
 ORDER BY i.id
ON CONFLICT DO NOTHING;
