-- Workers share the limits of a pool of nodes.

CREATE TABLE rpc_shares (
    pool text NOT NULL,
    worker text NOT NULL,
    request bigint NOT NULL,
    in_flight integer NOT NULL,
    rate double precision,
    used integer NOT NULL,
    wanted integer NOT NULL,
    limit_in_flight integer NOT NULL,
    limit_rate double precision,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (pool, worker),
    CONSTRAINT rpc_shares_counts_not_negative CHECK (in_flight >= 0 AND used >= 0 AND wanted >= 0 AND rate >= 0),
    CONSTRAINT rpc_shares_have_a_limit CHECK (limit_in_flight >= 1 AND limit_rate > 0)
);
COMMENT ON TABLE rpc_shares IS
    'The share of the limits of a pool of nodes that a worker has leased. Those that have not expired add up to the limit at most.';
COMMENT ON COLUMN rpc_shares.pool IS 'Its name in the settings (`rpc_pools`).';
COMMENT ON COLUMN rpc_shares.worker IS 'The worker process; another one each time that it starts.';
COMMENT ON COLUMN rpc_shares.request IS 'The number of its last request: an earlier one that arrives later is refused.';
COMMENT ON COLUMN rpc_shares.in_flight IS 'Requests that it may have under way at once.';
COMMENT ON COLUMN rpc_shares.rate IS 'Calls a second that it may send to each node; NULL: no limit.';
COMMENT ON COLUMN rpc_shares.used IS 'Requests that it had under way when it last asked.';
COMMENT ON COLUMN rpc_shares.wanted IS 'The most that were under way or waited at once, before it last asked.';
COMMENT ON COLUMN rpc_shares.limit_in_flight IS 'The `max_concurrency` of the pool in its settings.';
COMMENT ON COLUMN rpc_shares.limit_rate IS 'The `requests_per_second` of the pool in its settings.';
COMMENT ON COLUMN rpc_shares.expires_at IS 'When it gets free, unless the worker asks again.';
