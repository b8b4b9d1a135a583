-- An event of a source waits for it whatever it was held for, so that none overtakes those before it.

COMMENT ON COLUMN held_events.waits_for IS
    'Whose pause holds it back, besides that of the job itself: the source that emitted the event; the job, for all others.';
