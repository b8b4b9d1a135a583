-- Comments in ordinary technical English, and names to match. Changes the catalogue only; the renames, which need
-- exclusive locks, come last.

COMMENT ON SCHEMA hot IS 'Tables of datasets; created, written and owned by workers, read by the query service.';
COMMENT ON SCHEMA trace_meta IS 'Metadata of the tables in hot and buffered, and progress of their writers.';
COMMENT ON SCHEMA staging IS
    'Rows before they are merged: each write creates, merges and drops its own table; old tables are left over from killed writers.';
COMMENT ON SCHEMA buffered IS
    'Tables of buffered datasets; created, filled and widened by the sink, read by workers and the query service.';
COMMENT ON SCHEMA alerts IS
    'Work items of deliveries: workers insert them, and only the delivery process reads and ends them.';

COMMENT ON COLUMN trace_meta.dataset_tables.org_id IS
    'The organisation that owns it; not a foreign key, since organisations and datasets are in the state database.';
COMMENT ON COLUMN trace_meta.dataset_tables.columns IS 'Name, type and nullability of each column, in order.';
COMMENT ON COLUMN trace_meta.dataset_tables.unique_key IS 'Columns that rows are upserted by, besides org_id.';
COMMENT ON COLUMN trace_meta.dataset_tables.gone_from IS
    'A reorg removed the blocks from this number up to written_to, and none has replaced them yet: they are neither hot nor cold.';
COMMENT ON COLUMN trace_meta.dataset_tables.compacted_to IS
    'The dataset that its rows are compacted into, set by the first compaction; compacted_in holds commit numbers of that dataset.';

COMMENT ON SEQUENCE trace_meta.hot_seq IS 'Every write of a block takes a new value, under the lock of its table.';
COMMENT ON COLUMN trace_meta.hot_blocks.seq IS
    'Higher for every later write: a compaction marks only the writes that it has read.';
COMMENT ON COLUMN trace_meta.hot_blocks.compacted_in IS
    'The commit whose Parquet files contain exactly this write of the block.';
COMMENT ON COLUMN trace_meta.hot_blocks.compacted_at IS
    'When it was compacted; rows are kept for a grace period, for readers pinned to an older commit.';
COMMENT ON TABLE trace_meta.hot_swept IS
    'Blocks whose rows are no longer hot: a reader pinned to a commit before this one is refused, because it would miss them.';
COMMENT ON COLUMN trace_meta.hot_swept.commit IS 'The commit that they were compacted in.';
COMMENT ON COLUMN trace_meta.hot_swept.swept_at IS
    'When hot rows of this commit''s blocks were last deleted. Entries that are older than any reader are merged into the latest of them.';

COMMENT ON TABLE trace_meta.sources IS 'Progress of each follower; written in the transaction of its rows.';
COMMENT ON COLUMN trace_meta.sources.finalized_to IS 'The last block number that is final on the chain.';
COMMENT ON COLUMN trace_meta.sources.run_id IS
    'The task that started last. An earlier run that was suspended while this one took over reads it here and changes nothing.';
COMMENT ON COLUMN trace_meta.sources.attempt IS 'The latest attempt of that task.';
COMMENT ON TABLE trace_meta.announcements IS
    'Messages of a follower to the Dispatcher: written with the rows, sent after the commit, deleted once sent. Sending one twice is harmless.';
COMMENT ON COLUMN trace_meta.announcements.cause IS 'The reason, for display: for an invalidation, the fork.';
COMMENT ON TABLE trace_meta.followed_blocks IS
    'The chain as a follower last wrote it, including blocks that are no longer hot: a reorg may reach these too.';
COMMENT ON TABLE trace_meta.compactions IS
    'Parquet files that were written from a hot table and may have been committed. Once they are, their blocks are marked as compacted and the row is deleted.';
COMMENT ON COLUMN trace_meta.compactions.location IS 'The folder of the attempt that wrote it; it identifies the commit.';
COMMENT ON COLUMN trace_meta.compactions.up_to_seq IS 'The seq of the latest write that it read.';

COMMENT ON SEQUENCE trace_meta.publish_seq IS
    'Every batch takes a value, under the lock of its table: within a table, a higher one was committed later.';
COMMENT ON TABLE trace_meta.buffered_tables IS
    'Which table in buffered holds which dataset, and its declaration. A process that changes a table locks its row.';
COMMENT ON COLUMN trace_meta.buffered_tables.declaration IS
    'Columns with type and nullability, unique key, indexes: as the control plane accepted them.';
COMMENT ON TABLE trace_meta.applied_batches IS
    'Batches whose rows are in their table; written with the rows, so that a batch that is delivered again changes nothing.';
COMMENT ON COLUMN trace_meta.applied_batches.seq IS 'Also stored in each of its rows, until another batch overwrites them.';
COMMENT ON INDEX trace_meta.idx_applied_batches_age IS 'Batches by age, for pruning.';

COMMENT ON TYPE alerts.delivery_status IS 'To be sent; accepted by the receiver; given up; too old when it was due.';
COMMENT ON TABLE alerts.deliveries IS 'The delivery of an alert to one channel; one row, however often the alert is routed.';
COMMENT ON COLUMN alerts.deliveries.id IS 'Derived from the unique key, and sent to the receiver, who may get the alert twice.';
COMMENT ON COLUMN alerts.deliveries.org_id IS 'The organisation of the task that routed it; never taken from a row.';
COMMENT ON COLUMN alerts.deliveries.event IS 'The row of alert_events as it was when it was routed; this is sent.';
COMMENT ON COLUMN alerts.deliveries.due_at IS 'When it may be taken; while it is taken, when its lease ends.';
COMMENT ON COLUMN alerts.deliveries.at_any_age IS 'A user requested it again: it is sent even if it is old.';
COMMENT ON INDEX alerts.idx_deliveries_due IS 'Pending deliveries by the time when they are due.';
COMMENT ON INDEX alerts.idx_deliveries_settled IS 'Ended deliveries by age, for pruning.';
COMMENT ON FUNCTION alerts.tell_of_deliveries IS 'Notifies the delivery process of new deliveries.';
COMMENT ON FUNCTION alerts.prune_deliveries IS
    'Deletes deliveries that ended longer ago than the retention time and than a day; the delivery process may delete no others.';

ALTER TABLE trace_meta.batches_in_hand RENAME TO batches_in_progress;
ALTER TABLE trace_meta.batches_in_progress RENAME CONSTRAINT batches_in_hand_pkey TO batches_in_progress_pkey;
ALTER TABLE trace_meta.batches_in_progress
    RENAME CONSTRAINT batches_in_hand_tries_from_one TO batches_in_progress_tries_from_one;
ALTER TABLE trace_meta.batches_in_progress
    RENAME CONSTRAINT batches_in_hand_publish_id_not_null TO batches_in_progress_publish_id_not_null;
ALTER TABLE trace_meta.batches_in_progress
    RENAME CONSTRAINT batches_in_hand_tries_not_null TO batches_in_progress_tries_not_null;
ALTER TABLE trace_meta.batches_in_progress
    RENAME CONSTRAINT batches_in_hand_since_not_null TO batches_in_progress_since_not_null;
COMMENT ON TABLE trace_meta.batches_in_progress IS
    'Batches that a sink has begun to read and has not finished. A row that exists when a batch is delivered again was left by a sink that died.';
COMMENT ON COLUMN trace_meta.batches_in_progress.tries IS 'How many sinks began to read it and did not finish.';
