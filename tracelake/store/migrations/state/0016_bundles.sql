-- Bundles of user code: what a handler may name in each, which function a job runs, and the key of their URLs.

ALTER TABLE udf_bundles ADD COLUMN entry_points text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN udf_bundles.entry_points IS 'What a handler may name before its last dot, as the bundle was checked.';
CREATE INDEX udf_bundles_by_name ON udf_bundles (org_id, name, created_at DESC);

ALTER TABLE jobs
    ADD COLUMN udf_handler text,
    ADD CONSTRAINT jobs_handler_within_a_bundle CHECK (udf_handler IS NULL OR udf_bundle_id IS NOT NULL);
COMMENT ON COLUMN jobs.udf_handler IS 'The function within the bundle: module.function, as AWS Lambda has it.';

CREATE TABLE url_keys (
    name text PRIMARY KEY,
    key bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE url_keys IS 'Keys by which the Dispatcher knows URLs that it gave out itself: the same for all replicas.';
COMMENT ON COLUMN url_keys.key IS 'Of an HMAC-SHA256. It leaves the Dispatcher never.';
