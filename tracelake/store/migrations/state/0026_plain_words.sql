-- Comments in ordinary technical English, and names to match. Changes the catalogue only; the renames, which need
-- exclusive locks, come last.

COMMENT ON TABLE orgs IS 'An organisation (tenant). Foreign keys keep the rows of different organisations apart.';
COMMENT ON TABLE users IS 'A user, identified by the subject of an identity provider; belongs to one organisation.';
COMMENT ON CONSTRAINT users_id_within_org ON users IS 'Lets other tables reference a user together with its organisation.';
COMMENT ON TABLE org_roles IS 'A role that an organisation defines to control who may read which dataset.';
COMMENT ON TABLE org_role_memberships IS 'Which user has which role; both belong to the same organisation.';
COMMENT ON TABLE worker_tokens IS
    'A token that authenticates trusted workers and services; several are valid at a time, so that they can be rotated.';
COMMENT ON COLUMN worker_tokens.token_hash IS 'SHA-256 of the token; the token itself is not stored.';
COMMENT ON TABLE signing_keys IS
    'The public key of a pair that signs tokens; private keys are never stored in a database.';
COMMENT ON COLUMN signing_keys.verify_until IS
    'When the last token that it signed expires; afterwards the key leaves the key set.';
COMMENT ON TABLE udf_bundles IS 'A zip archive of user code, identified by the hash of its content.';
COMMENT ON COLUMN udf_bundles.entry_points IS
    'Names that a handler may have before its last dot, found when the bundle was checked.';

COMMENT ON COLUMN dag_versions.yaml_hash IS
    'Hash of the canonical form: a definition with the same meaning, deployed again, is the same version.';
COMMENT ON COLUMN dag_versions.yaml IS 'The text as it was deployed, for display.';
COMMENT ON TABLE jobs IS 'A job of one DAG version: its operator, inputs, outputs and limits.';
COMMENT ON COLUMN jobs.runtime IS
    'How the Dispatcher runs it. The settings map runtimes to queues and invokers, so any name is possible.';
COMMENT ON COLUMN jobs.config_hash IS
    'Covers everything that changes the output: operator, runtime, config, bundle, inputs.';
COMMENT ON COLUMN jobs.max_concurrency IS 'Extracted from scaling when it is written, for the hot path; NULL: no limit.';
COMMENT ON COLUMN jobs.timeout_seconds IS
    'Limits an attempt even while it sends heartbeats; NULL: no limit (sources).';
COMMENT ON COLUMN jobs.heartbeat_timeout_seconds IS 'The length of a lease, which each heartbeat renews.';
COMMENT ON COLUMN jobs.bootstrapped_at IS
    'When the bootstrap was acknowledged; it is requested until then, and never again.';
COMMENT ON COLUMN jobs.udf_handler IS 'The function within the bundle: module.function, as in AWS Lambda.';
COMMENT ON COLUMN jobs.max_platform_failures IS
    'After this many attempts that ended by a platform failure, a task is not retried. 0: the source loop restarts it instead.';
COMMENT ON COLUMN jobs.makes_whole IS
    'Each task writes the whole output from all inputs (mode: full): of several queued tasks, only the newest must run.';
COMMENT ON INDEX idx_jobs_runtime IS 'Jobs by runtime, to find those whose tasks are invoked as functions.';

COMMENT ON TABLE datasets IS 'An output of a job, published or not; every deploy of the DAG uses the same row.';
COMMENT ON COLUMN datasets.id IS 'The dataset_uuid; derived from organisation, DAG, job and output index.';
COMMENT ON COLUMN datasets.producer_job_name IS 'NULL: declared by the DAG, and written by the jobs that name it.';
COMMENT ON COLUMN datasets.storage IS
    'The kind of backend and its options; dataset_versions has the location of each generation.';
COMMENT ON TABLE dataset_versions IS
    'A generation of a dataset (no range), or a published range of one. A new generation never overwrites an earlier one.';
COMMENT ON COLUMN dataset_versions.config_hash IS
    'Hash of the producer''s config and of the configs of everything upstream of it.';
COMMENT ON COLUMN dataset_versions.block_range IS 'Half-open; range_start and range_end are generated from it.';
COMMENT ON COLUMN dataset_versions.range_start IS 'First block, as in the API.';
COMMENT ON COLUMN dataset_versions.range_end IS 'Last block, inclusive, as in the API.';
COMMENT ON COLUMN dataset_versions.columns IS
    'Name and type of each column, as of the first commit; schema_hash is computed from it.';
COMMENT ON TABLE dag_version_datasets IS 'Which generation of each dataset a DAG version serves.';
COMMENT ON INDEX idx_dag_version_datasets_generation IS
    'DAG versions by the generation that they serve, to find the cold part of a hot dataset.';
COMMENT ON TABLE job_inputs IS 'An edge of a DAG: the job reads the dataset. Routing joins only the live edges.';
COMMENT ON COLUMN job_inputs.where_tree IS
    'The parsed, allow-listed filter; it limits what the job reads and never suppresses an event.';
COMMENT ON COLUMN job_inputs.live IS
    'True while the job''s DAG version is active; a trigger on dag_current_versions maintains it. Without it, routing would read the edges of every version ever deployed.';
COMMENT ON COLUMN job_inputs.name IS 'The name of this input in the DAG, and of its table in SQL.';
COMMENT ON COLUMN job_inputs.triggers IS 'Whether updates of the input create tasks; false: it is only read.';
COMMENT ON TABLE column_lineage IS 'Which input columns an output column is computed from, as derived at deploy.';

COMMENT ON COLUMN tasks.attempt IS 'The number of the current attempt, from 1; a retry increments it.';
COMMENT ON COLUMN tasks.max_attempts IS
    'Copied from the job; a manual retry raises it. Attempts that ended by a platform failure do not count.';
COMMENT ON COLUMN tasks.timeout_seconds IS
    'Copied from the job: the longest duration of an attempt, regardless of heartbeats.';
COMMENT ON COLUMN tasks.dedupe_key IS
    'Identifies the unit of work: a job never has two tasks with the same key. Repeated work has its reason in the key.';
COMMENT ON COLUMN tasks.event_id IS 'The event that it was created for.';
COMMENT ON COLUMN tasks.invalidation_id IS 'The invalidation that it was created for.';
COMMENT ON COLUMN tasks.partitions IS 'Keys of the partitions that it writes; NULL: not by partition.';
COMMENT ON COLUMN tasks.queued_at IS 'When it last became Queued; the age of a queue is measured from it.';
COMMENT ON COLUMN tasks.woken_at IS
    'When its wake-up was written to the outbox; NULL: it waits for a slot of its job (max_concurrency).';
COMMENT ON COLUMN tasks.progress IS 'The progress that the worker last sent with a heartbeat.';
COMMENT ON COLUMN tasks.completed_at IS 'When it ended, with whichever status.';
COMMENT ON COLUMN tasks.next_retry_at IS 'Failed only: when the next attempt is due; NULL: there is no further attempt.';
COMMENT ON COLUMN tasks.completion_hash IS
    'SHA-256 of the completion that ended the attempt; the same completion again is not a conflict.';
COMMENT ON COLUMN tasks.completion_answer IS 'The response to that completion, returned again if it is repeated.';
COMMENT ON COLUMN tasks.memoized_from IS 'The completed task whose outputs were reused instead of running.';
COMMENT ON COLUMN tasks.platform_failures IS 'How many of its attempts ended by a platform failure.';
COMMENT ON COLUMN tasks.fault IS 'Failed only: whether the job or the platform caused the end of the current attempt.';
COMMENT ON COLUMN tasks.superseded_by IS 'The later task of the same job that reads all of its inputs.';
COMMENT ON COLUMN tasks.lost_alone IS
    'How many workers stopped sending heartbeats while they ran this task and no other.';
COMMENT ON INDEX idx_tasks_slot_wait IS 'Tasks that wait for a slot of their job, in the order in which they get one.';
COMMENT ON INDEX idx_tasks_in_flight IS 'Tasks that use a slot of their job.';
COMMENT ON INDEX idx_tasks_lease_expiry IS 'Running tasks by the end of their lease.';
COMMENT ON INDEX idx_tasks_next_retry IS 'Failed tasks by the time of their next attempt.';
COMMENT ON INDEX idx_tasks_failed IS 'Failed tasks without a further attempt.';
COMMENT ON TABLE task_attempts IS 'The history of a task: one row per attempt, with its outcome.';
COMMENT ON COLUMN task_attempts.outcome IS 'NULL: it is running.';
COMMENT ON COLUMN task_attempts.late IS
    'Its completion arrived after the attempt was considered lost, and was still accepted.';
COMMENT ON COLUMN task_attempts.fault IS 'Whether the job or the platform caused its failure; NULL: it did not fail.';
COMMENT ON INDEX idx_task_attempts_begun IS 'Attempts in the order in which they started, for the deletion of orphan files.';
COMMENT ON TABLE operator_state IS 'State that an operator keeps between tasks; written in the transaction of a completion.';
COMMENT ON COLUMN operator_state.state_key IS 'Distinguishes several states of one job.';

COMMENT ON TABLE dataset_heads IS
    'The number of a dataset''s last commit. Its row lock serializes commits, so that none appears below one that was already read.';
COMMENT ON TABLE commits IS 'One accepted change of one dataset by one task; the numbers of a dataset increase.';
COMMENT ON COLUMN commits.scope IS
    'Empty for a completion, so that a task commits once; a source that commits while it runs names each step.';
COMMENT ON INDEX idx_commits_made IS 'Commits by time, for the reconciler.';
COMMENT ON TABLE partition_versions IS
    'The content of a partition from one commit to another. At any commit, the partitions of a generation do not overlap.';
COMMENT ON COLUMN partition_versions.valid_from IS 'The commit that made it current.';
COMMENT ON COLUMN partition_versions.valid_to IS 'The commit that replaced it; NULL: it is current.';
COMMENT ON COLUMN partition_versions.commits IS 'Both as a range: `commits @> n` selects the partitions as of commit n.';
COMMENT ON COLUMN partition_versions.block_range IS 'Half-open; NULL for a partition that is not a range of blocks.';
COMMENT ON COLUMN partition_versions.files IS 'The files that the marker listed: key, rows, bytes and checksum of each.';
COMMENT ON COLUMN partition_versions.files_removed_at IS
    'When the files of this replaced partition were deleted; reads of a commit that needs them are refused.';
COMMENT ON INDEX idx_partition_versions_replaced IS 'Replaced partitions whose files are not deleted yet.';
COMMENT ON TABLE dataset_cursors IS
    'How far a job has read an input. The value never decreases; a new generation of the input has its own row.';

COMMENT ON TYPE event_kind IS 'The dataset is complete up to a cursor; a partition is new; the dataset changed.';
COMMENT ON TYPE disposition IS 'To be routed; stored for audit only, such as an event of an old generation.';
COMMENT ON COLUMN events.scope IS
    'Which part of the dataset is new, such as `cursor:12345` or `partition:1000-1999`.';
COMMENT ON COLUMN events.block_range IS 'Half-open; start and end in the API are inclusive.';
COMMENT ON COLUMN events.commit_number IS 'The commit that it reports.';
COMMENT ON COLUMN events.payload IS 'Data of the event, such as the body of a webhook.';
COMMENT ON INDEX idx_events_made IS 'Events by time, for the reconciler.';
COMMENT ON TABLE held_events IS
    'An event that waits because its job is paused. Event ids increase with time, so the primary key is also the order of release.';
COMMENT ON TABLE data_invalidations IS
    'A part of a generation that is no longer valid, and why; the jobs that read it process that part again.';
COMMENT ON COLUMN data_invalidations.id IS
    'Trace derives it from producer, range and reason, so that a repeated call is stored once.';
COMMENT ON COLUMN data_invalidations.follows_commit IS 'The commit that made it invalid.';
COMMENT ON TABLE data_invalidation_jobs IS
    'An invalidation for one job that reads the data: the task that processes it again, and when that task''s completion was accepted.';

COMMENT ON TYPE buffer_publish_status IS 'Not yet applied by the sink; rows in the table; refused by the sink.';
COMMENT ON TABLE buffer_publishes IS 'A reference to a batch of rows, accepted from a task for the sink to apply.';
COMMENT ON COLUMN buffer_publishes.error_line IS 'Dead only: the line of the batch, from 1, that caused the error.';
COMMENT ON COLUMN buffer_publishes.seq IS
    'Its sequence number among the batches of its table, assigned by data Postgres; the cursor of its event.';
COMMENT ON COLUMN buffer_publishes.repaired_uri IS
    'Location of a repaired batch that a user supplied; it is read instead of the one at batch_uri.';
COMMENT ON COLUMN buffer_publishes.replays IS 'How often a user replayed it.';
COMMENT ON COLUMN buffer_publishes.removed_at IS
    'When the batch was deleted from the object store; its rows are in the table.';
COMMENT ON TYPE outbox_status IS
    'Due from available_at on; being processed, until taken_until; done; given up.';
COMMENT ON TABLE outbox IS
    'A side effect: written in the transaction of its cause, performed afterwards, at least once.';
COMMENT ON COLUMN outbox.available_at IS 'It is not processed before this time; backoff postpones it.';
COMMENT ON COLUMN outbox.taken_until IS
    'When the replica that processes it is considered dead; another replica may then take the entry.';
COMMENT ON COLUMN outbox.taken_by IS 'The replica that processes it.';
COMMENT ON COLUMN outbox.dedupe_key IS
    'Identifies the effect where the cause does not already make the entry unique; only one entry with the key is open at a time.';
COMMENT ON COLUMN outbox.last_error IS 'Why the last attempt failed; of a Failed entry: why it was given up.';
COMMENT ON INDEX idx_outbox_pending IS 'Pending entries by the time when they are due.';
COMMENT ON INDEX idx_outbox_taken IS 'Entries that are being processed, to find those of a dead replica.';
COMMENT ON INDEX idx_outbox_failed IS 'Entries that were given up.';

COMMENT ON TYPE source_state IS 'To be started; sending heartbeats; heartbeats missed; requested to stop.';
COMMENT ON TABLE sources IS
    'An always-on source and its run, which is restarted when it ends; a source that was stopped permanently has no row.';
COMMENT ON COLUMN sources.run_id IS 'The same after a restart, so that an event that it emits twice is stored once.';
COMMENT ON COLUMN sources.task_id IS 'The long-running task that runs it.';
COMMENT ON TABLE pauses IS
    'Why a job gets no tasks of a priority: the queue and threshold that caused it, and since when.';
COMMENT ON COLUMN pauses.cause_job_id IS 'The job whose queue reached the threshold.';
COMMENT ON COLUMN pauses.observed IS 'The value that was measured when the threshold was reached.';
COMMENT ON COLUMN pauses.until IS 'NULL: the pause has not ended.';
COMMENT ON TABLE reconcile_marks IS
    'Progress of the reconciler, in one row. Only the replica that holds its lock reconciles.';
COMMENT ON COLUMN reconcile_marks.seen_until IS 'Rows created before this time have been compared once.';
COMMENT ON COLUMN reconcile_marks.swept_until IS 'Progress of the slow pass over all older rows.';
COMMENT ON COLUMN reconcile_marks.looked_at IS 'When a replica last reconciled; all replicas share one interval.';
COMMENT ON TABLE source_drains IS
    'The system is shutting down: no replica starts a source before `until`. The row is deleted when a system starts.';

COMMENT ON TYPE query_verdict IS
    'Rows were returned; not allowed, or over a limit; an error occurred; the caller had disconnected.';
COMMENT ON TABLE query_audit IS
    'One query to the Query service. The service creates the id, so that an entry that is reported twice is stored once.';
COMMENT ON COLUMN query_audit.user_id IS
    'The user who sent it; not a foreign key, so that the row outlives the user. NULL: a task sent it.';
COMMENT ON COLUMN query_audit.sql_sha256 IS
    'SHA-256 of the query text as received: equal queries can be recognised, and the text is not stored.';
COMMENT ON COLUMN query_audit.datasets IS 'Datasets that it was to read, as far as access was granted.';
COMMENT ON COLUMN query_audit.code IS 'Error code of the refusal.';
COMMENT ON INDEX idx_query_audit_age IS 'Entries by age, for pruning.';
COMMENT ON TABLE buffered_datasets IS
    'The current declaration of each buffered dataset, as its table has it. It is only ever extended.';
COMMENT ON TABLE task_logs IS 'Log lines of an attempt, up to a limit.';
COMMENT ON COLUMN task_logs.n IS 'How many lines precede it; a line that is sent again is stored once.';
COMMENT ON COLUMN task_logs.at IS 'When it was logged, by the clock of the process that logged it.';
COMMENT ON COLUMN task_logs.said_at IS 'When the Dispatcher received it; retention is measured from it.';
COMMENT ON INDEX idx_task_logs_age IS 'Lines by age, for pruning.';
COMMENT ON TABLE url_keys IS 'Keys with which the Dispatcher recognises URLs that it issued, shared by all replicas.';
COMMENT ON COLUMN url_keys.key IS 'Key of an HMAC-SHA256. It never leaves the Dispatcher.';
COMMENT ON TABLE alert_channels IS 'Where alerts are sent. Only the delivery process receives address and secret.';
COMMENT ON COLUMN alert_channels.secret IS 'The key that signs deliveries; it can be written and never read back.';
COMMENT ON TABLE alert_definitions IS
    'An alert: the parameters for the user code that evaluates it, and how it is delivered.';
COMMENT ON COLUMN alert_definitions.params IS 'Passed unchanged to the user code that evaluates it.';
COMMENT ON COLUMN alert_definitions.max_age_seconds IS 'Alerts about older events are not sent; NULL: no limit.';

COMMENT ON TYPE platform_role IS 'Permissions of a user in the platform, increasing from left to right.';
COMMENT ON TYPE signing_key_status IS
    'Published but not signing; signing; verifying only, until the last token has expired; removed from the key set.';
COMMENT ON TYPE udf_bundle_status IS 'Registered; checked and usable; refused by the check.';
COMMENT ON TYPE work_priority IS 'Under load, bulk (bootstrap, catch-up) is held back before normal.';
COMMENT ON TYPE dataset_visibility IS
    'No user; every reader of the organisation; only users who have one of read_roles.';
COMMENT ON TYPE failure_fault IS 'What caused a failure: the job or the platform.';

COMMENT ON FUNCTION is_block_range IS
    'Whether a range is a range of blocks: half-open, not empty, with both ends, from 0 on.';
COMMENT ON FUNCTION refuse_change IS
    'Refuses the change that fires its trigger, as a CHECK would; the error reports the trigger''s name as the constraint.';
COMMENT ON FUNCTION retry_wait IS
    'The wait before the next attempt after this many failures of one kind: doubles up to the longest wait. Half of it is random, so that tasks that failed together are retried at different times.';
COMMENT ON FUNCTION holds_lease IS
    'The fence: whether this attempt with this lease token is the task''s current one. Every write of an attempt checks it.';
COMMENT ON FUNCTION awaits_completion IS
    'Whether the current attempt may still report: it is running, or its lease expired and no newer attempt has begun.';
COMMENT ON FUNCTION event_task_key IS
    'Identifies the task for an event among the tasks of its job. A partition that is written again is another unit of work.';
COMMENT ON FUNCTION input_ref IS 'An input of a task, as claims and fetches return it.';
COMMENT ON VIEW triggered_jobs IS
    'Jobs of active versions that an update of a dataset triggers, with one row per input that names the dataset.';
COMMENT ON VIEW dead_sources IS
    'Sources that ended, and when each may start again: the wait doubles with each restart, less the time that it ran.';

ALTER INDEX outbox_owed_once RENAME TO outbox_open_once;
COMMENT ON INDEX outbox_open_once IS 'At most one open entry per dedupe key.';
ALTER INDEX idx_partition_versions_in_force RENAME TO idx_partition_versions_current;
COMMENT ON INDEX idx_partition_versions_current IS 'The current partitions of a generation.';

ALTER TABLE janitor_marks RENAME TO orphan_file_marks;
ALTER TABLE orphan_file_marks RENAME CONSTRAINT janitor_marks_pkey TO orphan_file_marks_pkey;
ALTER TABLE orphan_file_marks RENAME CONSTRAINT janitor_marks_has_one_row TO orphan_file_marks_has_one_row;
ALTER TABLE orphan_file_marks RENAME CONSTRAINT janitor_marks_only_one_not_null TO orphan_file_marks_only_one_not_null;
ALTER TABLE orphan_file_marks RENAME CONSTRAINT janitor_marks_swept_until_not_null TO orphan_file_marks_swept_until_not_null;
COMMENT ON TABLE orphan_file_marks IS
    'Progress of the deletion of orphan files, in one row. Only the replica that holds its lock deletes.';
COMMENT ON COLUMN orphan_file_marks.swept_until IS
    'Attempts that started up to this time were checked: files that they wrote and that no commit references are deleted.';

ALTER TABLE buffer_publishes RENAME COLUMN owed_at TO sent_at;
ALTER TABLE buffer_publishes RENAME CONSTRAINT buffer_publishes_owed_at_not_null TO buffer_publishes_sent_at_not_null;
COMMENT ON COLUMN buffer_publishes.sent_at IS
    'When an outbox entry for the sink was last written. If it is not settled long afterwards, its message was lost.';
