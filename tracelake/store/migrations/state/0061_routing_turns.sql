-- Datasets take turns when many events wait to be routed: the events of one organisation or job do not wait for a flood of
-- another's. Entries of before have no dataset and take turns as one.

ALTER TABLE outbox ADD COLUMN turn_of uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
COMMENT ON COLUMN outbox.turn_of IS 'The dataset of an event that is to be routed: datasets take turns. Zeros: of none.';

CREATE INDEX idx_outbox_turns ON outbox (turn_of, available_at, id) WHERE status = 'Pending' AND kind = 'route_event';
COMMENT ON INDEX idx_outbox_turns IS 'Events that are to be routed, by dataset.';
