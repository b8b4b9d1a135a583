-- The ledger: each commit carries the hash of the one before it, and the hashes of its files, inputs and code. Commits
-- that exist already have none: the chain of a dataset begins with its first commit after this migration.

CREATE FUNCTION commit_digest(
    org_id uuid, dataset_uuid uuid, number bigint, dataset_version uuid, task_id uuid, attempt integer, scope text,
    row_count bigint, bytes bigint, schema_hash text, created_at timestamptz, files_hash bytea, inputs_hash bytea,
    code_hash bytea
) RETURNS bytea
LANGUAGE sql STABLE
RETURN sha256(convert_to(jsonb_build_array(
    org_id, dataset_uuid, number, dataset_version, task_id, attempt, scope, row_count, bytes, schema_hash,
    (extract(epoch FROM created_at) * 1000000)::bigint, encode(files_hash, 'hex'), encode(inputs_hash, 'hex'),
    encode(code_hash, 'hex'))::text, 'UTF8'));
COMMENT ON FUNCTION commit_digest IS
    'The SHA-256 of a commit''s own fields as a JSON array; domain/ledger.py computes the same.';

CREATE FUNCTION link_commit(previous bytea, first_previous bytea, digest bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN sha256(coalesce(previous, first_previous, ''::bytea) || digest);
COMMENT ON FUNCTION link_commit IS
    'The hash of a commit: of the hash of the one before it (the first of a chain has none) and of its own digest.';

CREATE AGGREGATE chain_commits(first_previous bytea, digest bytea) (SFUNC = link_commit, STYPE = bytea);
COMMENT ON AGGREGATE chain_commits(bytea, bytea) IS
    'The hashes of several commits in their order, as a window function, after one whose hash is first_previous.';

CREATE FUNCTION inputs_hash(task uuid, of_attempt integer) RETURNS bytea
LANGUAGE sql STABLE
RETURN (
    SELECT sha256(convert_to(coalesce(jsonb_agg(
               jsonb_build_array(i.input_dataset_uuid, i.input_dataset_version, i.input_partition_key, i.input_commit)
               ORDER BY i.input_dataset_uuid, i.input_partition_key COLLATE "C"), '[]')::text, 'UTF8'))
      FROM task_inputs i
     WHERE i.task_id = task AND i.attempt = of_attempt);
COMMENT ON FUNCTION inputs_hash IS 'The SHA-256 of what an attempt has read: dataset, generation, partition and commit of each input.';

CREATE FUNCTION code_hash(task uuid) RETURNS bytea
LANGUAGE sql STABLE
RETURN (
    SELECT sha256(convert_to(jsonb_build_array(j.config_hash, b.sha256)::text, 'UTF8'))
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
      LEFT JOIN udf_bundles b ON b.id = j.udf_bundle_id
     WHERE t.id = task);
COMMENT ON FUNCTION code_hash IS 'The SHA-256 of the code of a task''s job: its config hash, and the hash of its bundle.';

ALTER TABLE dataset_heads ADD COLUMN last_hash bytea;
COMMENT ON COLUMN dataset_heads.last_hash IS
    'The hash of the last commit, to which the next one is linked; NULL: no commit since the ledger exists.';

ALTER TABLE commits
    ADD COLUMN previous_hash bytea,
    ADD COLUMN files_hash bytea,
    ADD COLUMN inputs_hash bytea,
    ADD COLUMN code_hash bytea,
    ADD COLUMN hash bytea,
    ADD CONSTRAINT commits_hashed_whole CHECK (num_nulls(files_hash, inputs_hash, code_hash, hash) IN (0, 4)),
    ADD CONSTRAINT commits_previous_of_a_hashed CHECK (previous_hash IS NULL OR hash IS NOT NULL);
COMMENT ON COLUMN commits.previous_hash IS 'The hash of the commit before it; NULL: the first of its chain.';
COMMENT ON COLUMN commits.files_hash IS 'The SHA-256 of the partitions that it set, with the checksums of their files.';
COMMENT ON COLUMN commits.inputs_hash IS 'The SHA-256 of what its attempt had read.';
COMMENT ON COLUMN commits.code_hash IS 'The SHA-256 of the config hash and bundle of its job.';
COMMENT ON COLUMN commits.hash IS
    'The SHA-256 of previous_hash and of the digest of the other columns; NULL: committed before the ledger existed.';

CREATE INDEX idx_partition_versions_made ON partition_versions (dataset_uuid, valid_from);
COMMENT ON INDEX idx_partition_versions_made IS 'The partitions that a commit set, for the ledger and the reconciler.';
