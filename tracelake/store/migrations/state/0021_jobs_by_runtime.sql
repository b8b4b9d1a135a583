-- The Dispatcher looks for waiting tasks by runtime.

CREATE INDEX idx_jobs_runtime ON jobs (runtime);
COMMENT ON INDEX idx_jobs_runtime IS 'The jobs whose tasks are called as functions.';
