-- Tables of buffered datasets and the batches that they hold.

-- name: registered
-- What the table of a dataset has, if there is one; held until the end of the transaction.
SELECT declaration::text FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s FOR UPDATE;

-- name: declared
-- What the table of an organisation's dataset has, for who only reads.
SELECT declaration::text FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s AND org_id = %(org)s;

-- name: lock_name
-- Only one makes a table that is not there yet.
SELECT pg_advisory_xact_lock(hashtextextended('trace buffered ' || %(version)s, 0));

-- name: register
-- The table and what it has; made, or widened.
INSERT INTO trace_meta.buffered_tables (dataset_version, dataset_uuid, org_id, table_name, declaration)
VALUES (%(version)s, %(dataset)s, %(org)s, %(table_name)s, %(declaration)s::jsonb)
ON CONFLICT (dataset_version) DO UPDATE SET declaration = excluded.declaration, updated_at = now();

-- name: lock_table
-- One merge into a table at a time, so that a batch that is seen later has a higher seq.
SELECT FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s FOR UPDATE;

-- name: applied
-- Those of these batches whose rows are in their table.
SELECT publish_id, seq, row_count, byte_count FROM trace_meta.applied_batches WHERE publish_id = ANY (%(ids)s);

-- name: apply
-- Note batches as applied, in the order given, with their seq; one that is noted already does not come back.
INSERT INTO trace_meta.applied_batches (publish_id, dataset_version, seq, row_count, byte_count)
SELECT b.id, %(version)s, nextval('trace_meta.publish_seq'), b.row_count, b.byte_count
  FROM (SELECT * FROM unnest(%(ids)s::uuid[], %(rows)s::bigint[], %(bytes)s::bigint[])
            WITH ORDINALITY AS v (id, row_count, byte_count, n) ORDER BY n) b
ON CONFLICT (publish_id) DO NOTHING
RETURNING publish_id, seq;
