-- Jobs that make their whole output anew each time run once for the newest of several queued updates.

ALTER TABLE jobs ADD COLUMN makes_whole boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN jobs.makes_whole IS
    'Each task makes all of the output from all of the inputs (mode: full): of several that are queued, the newest is enough.';
UPDATE jobs SET makes_whole = true WHERE operator IN ('sql', 'python', 'quality') AND config ->> 'mode' = 'full';

ALTER TABLE tasks
    ADD COLUMN superseded_by uuid,
    ADD CONSTRAINT tasks_only_canceled_is_superseded CHECK (superseded_by IS NULL OR status = 'Canceled');
COMMENT ON COLUMN tasks.superseded_by IS 'The later task of its job that reads all that it would have read.';
