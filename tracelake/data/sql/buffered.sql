-- Tables of buffered datasets, and the batches applied to them.

-- name: registered
-- Returns and locks the entry of a dataset's table, if there is one.
SELECT declaration::text FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s FOR UPDATE;

-- name: declared
-- Returns the entry of an organisation's table, for readers.
SELECT declaration::text FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s AND org_id = %(org)s;

-- name: lock_name
-- Lets one transaction at a time create a table.
SELECT pg_advisory_xact_lock(hashtextextended('trace buffered ' || %(version)s, 0));

-- name: register
-- Inserts or updates the entry of a table.
INSERT INTO trace_meta.buffered_tables (dataset_version, dataset_uuid, org_id, table_name, declaration)
VALUES (%(version)s, %(dataset)s, %(org)s, %(table_name)s, %(declaration)s::jsonb)
ON CONFLICT (dataset_version) DO UPDATE SET declaration = excluded.declaration, updated_at = now();

-- name: lock_table
-- Allows one merge into a table at a time, so that a batch that becomes visible later has a higher seq.
SELECT FROM trace_meta.buffered_tables WHERE dataset_version = %(version)s FOR UPDATE;

-- name: applied
-- Returns those of these batches whose rows are in their table.
SELECT publish_id, seq, row_count, byte_count FROM trace_meta.applied_batches WHERE publish_id = ANY (%(ids)s);

-- name: apply
-- Records batches as applied, in the order given; returns their seq, but not for those recorded before.
INSERT INTO trace_meta.applied_batches (publish_id, dataset_version, seq, row_count, byte_count)
SELECT b.id, %(version)s, nextval('trace_meta.publish_seq'), b.row_count, b.byte_count
  FROM (SELECT * FROM unnest(%(ids)s::uuid[], %(rows)s::bigint[], %(bytes)s::bigint[])
            WITH ORDINALITY AS v (id, row_count, byte_count, n) ORDER BY n) b
ON CONFLICT (publish_id) DO NOTHING
RETURNING publish_id, seq;
