-- Who may write for a follower: the latest run that has begun, and none before it.

ALTER TABLE trace_meta.sources
    ADD COLUMN run_id uuid,
    ADD COLUMN attempt integer,
    ADD CONSTRAINT sources_run_has_an_attempt CHECK ((run_id IS NULL) = (attempt IS NULL));
COMMENT ON COLUMN trace_meta.sources.run_id IS
    'The task that has begun last. A run before it, frozen while this one took over, finds it here and changes nothing.';
COMMENT ON COLUMN trace_meta.sources.attempt IS 'The latest of that task.';
