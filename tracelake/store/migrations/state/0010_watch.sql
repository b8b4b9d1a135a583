-- What keeps watch over the rest: how far the past has been compared with what must follow from it.

CREATE TABLE reconcile_marks (
    only_one boolean PRIMARY KEY DEFAULT true,
    seen_until timestamptz NOT NULL DEFAULT now(),
    swept_until timestamptz NOT NULL DEFAULT now(),
    looked_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT reconcile_marks_has_one_row CHECK (only_one)
);
COMMENT ON TABLE reconcile_marks IS
    'Where the reconciler stands; one row, and whoever locks it is the one replica that looks.';
COMMENT ON COLUMN reconcile_marks.seen_until IS 'What was made before this has been compared once.';
COMMENT ON COLUMN reconcile_marks.swept_until IS 'How far the slow round through all of the past has come.';
COMMENT ON COLUMN reconcile_marks.looked_at IS 'When somebody last looked: the beat is one for all replicas.';

-- Rows lie in the order in which they were made, so a summary of each stretch of pages finds those of an hour, costs next
-- to nothing to keep, and stays a few pages large for ever.
CREATE INDEX idx_events_made ON events USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX idx_commits_made ON commits USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
COMMENT ON INDEX idx_events_made IS 'The events of some hour, for the reconciler.';
COMMENT ON INDEX idx_commits_made IS 'The commits of some hour, for the reconciler.';

-- A source's row goes when its version leaves, and comes back with it; that its outputs were reset must stay known.
ALTER TABLE jobs ADD COLUMN bootstrapped_at timestamptz;
ALTER TABLE jobs ADD CONSTRAINT jobs_only_bootstrap_is_done CHECK (bootstrapped_at IS NULL OR bootstrap IS NOT NULL);
COMMENT ON COLUMN jobs.bootstrapped_at IS 'When the bootstrap was acknowledged: it is asked for until then, and never again.';
ALTER TABLE sources DROP COLUMN bootstrapped_at;

CREATE TABLE source_drains (
    only_one boolean PRIMARY KEY DEFAULT true,
    since timestamptz NOT NULL DEFAULT now(),
    until timestamptz NOT NULL,
    CONSTRAINT source_drains_has_one_row CHECK (only_one),
    CONSTRAINT source_drains_end_after_their_start CHECK (until > since)
);
COMMENT ON TABLE source_drains IS
    'The system goes down: no replica starts a source until then. A row stays for so long at most, or until a system comes up.';
