-- What has ended is kept for a while, and then deleted: deliveries, the notes of applied batches, and of swept blocks.

CREATE INDEX idx_deliveries_settled ON alerts.deliveries (settled_at) WHERE settled_at IS NOT NULL;
COMMENT ON INDEX alerts.idx_deliveries_settled IS 'What is old enough to be deleted.';

CREATE FUNCTION alerts.prune_deliveries(keep interval, most integer) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS (
        SELECT id FROM alerts.deliveries
         WHERE settled_at < now() - greatest(keep, interval '1 day')
         ORDER BY settled_at
         LIMIT most
           FOR UPDATE SKIP LOCKED
    ), pruned AS (
        DELETE FROM alerts.deliveries d USING old WHERE d.id = old.id RETURNING d.id
    )
    SELECT count(*) FROM pruned
$$;
REVOKE EXECUTE ON FUNCTION alerts.prune_deliveries FROM PUBLIC;
COMMENT ON FUNCTION alerts.prune_deliveries IS
    'Deletes deliveries that ended longer ago than they are kept, and than a day: who delivers may delete no others.';

CREATE INDEX idx_applied_batches_age ON trace_meta.applied_batches (applied_at, publish_id);
COMMENT ON INDEX trace_meta.idx_applied_batches_age IS 'What is old enough to be deleted.';

ALTER TABLE trace_meta.hot_swept ADD COLUMN swept_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN trace_meta.hot_swept.swept_at IS
    'When blocks of this commit were last swept. Rows that are older than any reader are merged into the latest of them.';
