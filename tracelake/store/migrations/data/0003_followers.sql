-- What followers and compactions remember: the hashes of the chain they have followed, and compactions under way.

CREATE TABLE trace_meta.followed_blocks (
    source_key text NOT NULL
        CONSTRAINT followed_blocks_of_a_source REFERENCES trace_meta.sources (source_key) ON DELETE CASCADE,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (source_key, number)
);
COMMENT ON TABLE trace_meta.followed_blocks IS
    'The chain as a follower has last written it, below its hot tables'' oldest block too: a reorg may reach what is cold already.';

CREATE TABLE trace_meta.compactions (
    dataset_version uuid NOT NULL
        CONSTRAINT compactions_of_a_table
        REFERENCES trace_meta.dataset_tables (dataset_version) ON DELETE CASCADE,
    location text NOT NULL,
    range_start bigint NOT NULL,
    range_stop bigint NOT NULL,
    up_to_seq bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, location, range_start),
    CONSTRAINT compactions_range_has_numbers CHECK (range_start >= 0 AND range_start < range_stop)
);
COMMENT ON TABLE trace_meta.compactions IS
    'Parquet that was written from a hot table and may have been committed: when it has, its blocks are marked cold and the row goes.';
COMMENT ON COLUMN trace_meta.compactions.location IS 'The folder of the attempt that wrote it: by this its commit is recognised.';
COMMENT ON COLUMN trace_meta.compactions.up_to_seq IS 'The latest writing that it read.';
