-- What is held is released in the order in which it was accepted, whichever replica of the Dispatcher routed it.

ALTER TABLE held_events ALTER COLUMN seq DROP IDENTITY;
-- What is there was numbered by a sequence of its own: it stays before all that comes.
UPDATE held_events SET seq = seq - (SELECT max(seq) FROM held_events);
COMMENT ON COLUMN held_events.seq IS
    'The outbox entry that routed it: what was accepted first is released first. Zero and less: it was held before version 65 of this schema.';
