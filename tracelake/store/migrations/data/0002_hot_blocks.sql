-- Which blocks the hot tables cover, apart from their rows: a block may have no rows and still be known.

CREATE SCHEMA staging;
COMMENT ON SCHEMA staging IS 'Rows on their way into a table: made, merged and dropped by one write; what is old was left by a kill.';

CREATE SEQUENCE trace_meta.hot_seq;
COMMENT ON SEQUENCE trace_meta.hot_seq IS 'Every write of a block draws a new one, under the lock of its table.';

ALTER TABLE trace_meta.dataset_tables
    ADD COLUMN number_column text,
    ADD COLUMN written_to bigint,
    ADD COLUMN gone_from bigint,
    ADD CONSTRAINT dataset_tables_version_once UNIQUE (dataset_version),
    ADD CONSTRAINT dataset_tables_gone_was_written CHECK (gone_from IS NULL OR gone_from <= written_to);
COMMENT ON COLUMN trace_meta.dataset_tables.number_column IS
    'The column with the block number; NULL for a table that is not written block by block.';
COMMENT ON COLUMN trace_meta.dataset_tables.written_to IS 'The highest block number that was ever written.';
COMMENT ON COLUMN trace_meta.dataset_tables.gone_from IS
    'A reorg took back this number and all up to written_to, and none has come in its place yet: neither hot nor cold has it.';

CREATE TABLE trace_meta.hot_blocks (
    dataset_version uuid NOT NULL
        CONSTRAINT hot_blocks_of_a_table
        REFERENCES trace_meta.dataset_tables (dataset_version) ON DELETE CASCADE,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    parent_hash bytea NOT NULL,
    seq bigint NOT NULL DEFAULT nextval('trace_meta.hot_seq'),
    compacted_in bigint,
    compacted_at timestamptz,
    PRIMARY KEY (dataset_version, number),
    CONSTRAINT hot_blocks_number_counts_from_zero CHECK (number >= 0),
    CONSTRAINT hot_blocks_compaction_is_whole CHECK ((compacted_in IS NULL) = (compacted_at IS NULL))
) WITH (fillfactor = 90);
COMMENT ON TABLE trace_meta.hot_blocks IS
    'A reader pinned to commit C reads a block from its hot table if there is a row here with compacted_in NULL or above C; else from the Parquet files of C.';
COMMENT ON COLUMN trace_meta.hot_blocks.seq IS 'Higher for every later write: a compaction marks only what it has read.';
COMMENT ON COLUMN trace_meta.hot_blocks.compacted_in IS 'The commit whose Parquet files hold exactly this writing of the block.';
COMMENT ON COLUMN trace_meta.hot_blocks.compacted_at IS 'Rows stay for a grace time, for readers pinned to an older commit.';

CREATE INDEX idx_hot_blocks_compacted ON trace_meta.hot_blocks (dataset_version, compacted_at)
    WHERE compacted_at IS NOT NULL;

CREATE TABLE trace_meta.hot_swept (
    dataset_version uuid NOT NULL
        CONSTRAINT hot_swept_of_a_table
        REFERENCES trace_meta.dataset_tables (dataset_version) ON DELETE CASCADE,
    commit bigint NOT NULL,
    numbers int8multirange NOT NULL,
    PRIMARY KEY (dataset_version, commit),
    CONSTRAINT hot_swept_something CHECK (NOT isempty(numbers))
);
COMMENT ON TABLE trace_meta.hot_swept IS
    'Blocks whose rows are no longer hot: a reader pinned to a commit before this one is refused rather than shown a hole.';
COMMENT ON COLUMN trace_meta.hot_swept.commit IS 'The commit they were compacted in.';

CREATE TABLE trace_meta.sources (
    source_key text PRIMARY KEY,
    announced_to bigint,
    finalized_to bigint,
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sources_key_is_short CHECK (length(source_key) BETWEEN 1 AND 200),
    CONSTRAINT sources_final_is_announced CHECK (finalized_to IS NULL OR finalized_to <= announced_to)
);
COMMENT ON TABLE trace_meta.sources IS 'How far each follower has come; written with its rows, in one transaction.';
COMMENT ON COLUMN trace_meta.sources.announced_to IS 'The last block number whose rows are committed here.';
COMMENT ON COLUMN trace_meta.sources.finalized_to IS 'The last one that the chain will not take back.';

CREATE TABLE trace_meta.announcements (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_key text NOT NULL
        CONSTRAINT announcements_of_a_source REFERENCES trace_meta.sources (source_key) ON DELETE CASCADE,
    kind text NOT NULL,
    range_start bigint NOT NULL,
    range_stop bigint NOT NULL,
    cause text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT announcements_kind_known CHECK (kind IN ('event', 'invalidation', 'final')),
    CONSTRAINT announcements_range_has_numbers CHECK (range_start >= 0 AND range_start < range_stop)
);
COMMENT ON TABLE trace_meta.announcements IS
    'What a follower owes the Dispatcher: put with the rows, told after they are committed, deleted once told. Telling twice is harmless.';
COMMENT ON COLUMN trace_meta.announcements.range_stop IS 'Exclusive.';
COMMENT ON COLUMN trace_meta.announcements.cause IS 'Why, for people: for an invalidation, the fork.';
CREATE INDEX idx_announcements_of_source ON trace_meta.announcements (source_key, id);
