-- Limits of organisations, and what is used of them.

-- name: set_defaults
-- The limits of organisations that have none of their own are these ($1: names, $2: numbers) and no others.
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::bigint[]) AS g (name, most)
), gone AS (
    DELETE FROM org_limits l WHERE l.org_id IS NULL AND NOT EXISTS (SELECT FROM given g WHERE g.name = l.name)
)
INSERT INTO org_limits (name, most) SELECT name, most FROM given ORDER BY name
ON CONFLICT (org_id, name) DO UPDATE SET most = excluded.most, set_at = now() WHERE org_limits.most <> excluded.most;

-- name: set_sandboxed_runtimes
-- The runtimes whose tasks have a sandbox each are these ($1), and those with functions are the ones of $2.
WITH gone AS (
    DELETE FROM sandboxed_runtimes s WHERE s.runtime <> ALL ($1::text[])
)
INSERT INTO sandboxed_runtimes (runtime, is_function) SELECT r, r = ANY ($2::text[]) FROM unnest($1::text[]) AS u (r) ORDER BY r
ON CONFLICT (runtime) DO UPDATE SET is_function = excluded.is_function
 WHERE sandboxed_runtimes.is_function <> excluded.is_function;

-- name: share_limits
-- Jobs whose tasks may have to wait for a limit that is not their own, and no others, are marked so. $1: of this organisation.
UPDATE jobs j SET shares_limit = NOT j.shares_limit
 WHERE ($1::uuid IS NULL OR j.org_id = $1) AND j.shares_limit <> shares_limit(j.org_id, j.operator, j.runtime);

-- name: lock_org
-- Locks the limits of an organisation ($1) until a version is stored: a limit that is set meanwhile waits, and then
-- counts for its jobs too.
SELECT FROM orgs WHERE id = $1 FOR SHARE;

-- name: find_org
-- An organisation by its name in paths, locked against other changes of its limits.
SELECT id FROM orgs WHERE slug = $1 FOR NO KEY UPDATE;

-- name: set_limits
-- Sets limits of an organisation ($1) to numbers ($2: names, $3: numbers; NULL: no limit), by the user $4.
INSERT INTO org_limits (org_id, name, most, set_by)
SELECT $1, g.name, g.most, u.external_id
  FROM unnest($2::text[], $3::bigint[]) AS g (name, most), users u
 WHERE u.id = $4
 ORDER BY g.name
ON CONFLICT (org_id, name) DO UPDATE SET most = excluded.most, set_by = excluded.set_by, set_at = now();

-- name: unset_limits
-- The defaults count for an organisation again, for these names.
DELETE FROM org_limits WHERE org_id = $1 AND name = ANY ($2::text[]);

-- name: list_limits
-- The limits of an organisation that it has of its own or by default.
SELECT DISTINCT ON (name) name, most, org_id IS NOT NULL AS own, set_by, set_at
  FROM org_limits
 WHERE org_id = $1 OR org_id IS NULL
 ORDER BY name, org_id NULLS LAST;

-- name: load_limits
-- The limits of queries of each organisation that has limits of its own, or is measured; without an organisation: those of all
-- others.
SELECT o.org_id, org_limit(o.org_id, 'queries') AS queries, org_limit(o.org_id, 'queries_waiting') AS queries_waiting,
       org_limit(o.org_id, 'query_seconds') AS query_seconds, org_limit(o.org_id, 'sessions') AS sessions,
       is_storage_full(o.org_id) AS storage_full
  FROM (SELECT org_id FROM org_limits UNION SELECT org_id FROM org_storage UNION SELECT NULL) o;

-- name: list_slots
-- How many tasks of an organisation are in flight and wait, for each limit that is about them.
SELECT s.name, s.used, s.waiting FROM org_slots($1, true) s;

-- name: list_used_limits
-- What an organisation uses of the limits that it has for tasks, and of what it may store, as last measured.
SELECT s.name AS limit, s.most, s.used, t.waiting
  FROM org_slots($1, false) s JOIN org_slots($1, true) t ON t.name = s.name
 UNION ALL
SELECT 'object_bytes', org_limit($1, 'object_bytes'), o.bytes, 0
  FROM org_storage o WHERE o.org_id = $1 AND org_limit($1, 'object_bytes') IS NOT NULL;

-- name: list_datasets
-- What each dataset of an organisation stores: files of current and of replaced partitions, and current rows.
SELECT d.id AS dataset_uuid, d.name AS dataset, d.producer_dag_name AS dag, d.producer_job_name AS job,
       coalesce(sum(p.bytes) FILTER (WHERE p.valid_to IS NULL), 0)::bigint AS current_bytes,
       coalesce(sum(p.bytes) FILTER (WHERE p.valid_to IS NOT NULL), 0)::bigint AS replaced_bytes,
       coalesce(sum(p.row_count) FILTER (WHERE p.valid_to IS NULL), 0)::bigint AS rows
  FROM datasets d
  JOIN dataset_versions v ON v.dataset_uuid = d.id AND v.block_range IS NULL
  JOIN partition_versions p ON p.dataset_version = v.id AND p.files_removed_at IS NULL
 WHERE d.org_id = $1
 GROUP BY d.id
 ORDER BY sum(p.bytes) DESC NULLS LAST, d.id
 LIMIT $2;

-- name: measure_org
-- What one organisation stores now, whether or not it has a limit.
SELECT object_bytes_of($1);

-- name: queries_of_a_day
-- How many queries an organisation ran within a day, and for how long together.
SELECT count(*) AS queries, coalesce(sum(milliseconds), 0)::float8 / 1000 AS seconds
  FROM query_audit
 WHERE org_id = $1 AND asked_at > now() - interval '1 day';

-- name: measure_storage
-- Measures each organisation that has a limit of object_bytes, and forgets the others. How many are full that were not, or are
-- no longer.
WITH limited AS (
    SELECT o.id AS org_id, object_bytes_of(o.id) AS bytes, org_limit(o.id, 'object_bytes') AS most,
           is_storage_full(o.id) AS was_full
      FROM orgs o
     WHERE org_limit(o.id, 'object_bytes') IS NOT NULL
), stored AS (
    INSERT INTO org_storage (org_id, bytes) SELECT org_id, bytes FROM limited ORDER BY org_id
    ON CONFLICT (org_id) DO UPDATE SET bytes = excluded.bytes, measured_at = now()
), gone AS (
    DELETE FROM org_storage s WHERE NOT EXISTS (SELECT FROM limited l WHERE l.org_id = s.org_id)
)
SELECT count(*) FROM limited WHERE was_full <> (bytes >= most);

-- name: storage_of
-- How much an organisation stores, if it may not store more.
SELECT s.bytes, org_limit(s.org_id, 'object_bytes') AS most
  FROM org_storage s
 WHERE s.org_id = $1 AND is_storage_full(s.org_id);
