-- Limits of organisations: what each may use at once, and how much it may store.

CREATE TABLE org_limits (
    org_id uuid REFERENCES orgs (id),
    name text NOT NULL,
    most bigint,
    set_by text,
    set_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT org_limits_are_set_once UNIQUE NULLS NOT DISTINCT (org_id, name),
    CONSTRAINT org_limits_name_is_known CHECK (name IN (
        'tasks', 'sandboxes', 'functions', 'object_bytes', 'queries', 'queries_waiting', 'query_seconds', 'sessions')),
    CONSTRAINT org_limits_allow_one CHECK (most >= 1),
    CONSTRAINT org_limits_default_is_a_number CHECK (org_id IS NOT NULL OR most IS NOT NULL),
    CONSTRAINT org_limits_of_one_has_an_author CHECK ((org_id IS NULL) = (set_by IS NULL))
);
COMMENT ON TABLE org_limits IS
    'How much an organisation may use of something. Platform admins write those of an organisation; the Dispatcher writes the defaults when it starts, from its settings.';
COMMENT ON COLUMN org_limits.org_id IS 'Whose limit it is; NULL: the default of all that have none of their own.';
COMMENT ON COLUMN org_limits.most IS 'The largest number that is allowed; NULL: this organisation has no limit, whatever the default.';
COMMENT ON COLUMN org_limits.set_by IS 'The subject of the platform admin who set it, as it was then.';

CREATE TABLE org_storage (
    org_id uuid PRIMARY KEY REFERENCES orgs (id),
    bytes bigint NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT org_storage_is_a_size CHECK (bytes >= 0)
);
COMMENT ON TABLE org_storage IS
    'How many bytes of an organisation with a limit of object_bytes were in the object store when it was last measured.';

CREATE TABLE sandboxed_runtimes (
    runtime text PRIMARY KEY,
    is_function boolean NOT NULL
);
COMMENT ON TABLE sandboxed_runtimes IS
    'The runtimes whose tasks have a sandbox each: what the limits `sandboxes` and `functions` are about. Written by the Dispatcher when it starts, from its settings.';
COMMENT ON COLUMN sandboxed_runtimes.is_function IS 'Whether its tasks are functions, which the Dispatcher calls.';
INSERT INTO sandboxed_runtimes VALUES ('ecs_udf', false), ('lambda', true);

CREATE FUNCTION org_limit(org uuid, limit_name text) RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT most FROM org_limits
         WHERE name = limit_name AND (org_id = org OR org_id IS NULL)
         ORDER BY org_id NULLS LAST LIMIT 1);
COMMENT ON FUNCTION org_limit IS 'The limit of an organisation: its own, or else the default; NULL: none.';

CREATE FUNCTION object_bytes_of(org uuid) RETURNS bigint
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT (coalesce((
                -- Files that several generations share are there once.
                SELECT sum(f.bytes)
                  FROM (SELECT DISTINCT p.location, p.files, p.bytes
                          FROM dataset_versions v
                          JOIN partition_versions p ON p.dataset_version = v.id AND p.files_removed_at IS NULL
                         WHERE v.org_id = org AND v.block_range IS NULL) f), 0)
            + coalesce((SELECT sum(b.size_bytes) FROM udf_bundles b WHERE b.org_id = org AND b.status = 'Ready'), 0)
            + coalesce((SELECT sum(q.batch_size_bytes) FROM buffer_publishes q
                         WHERE q.org_id = org AND q.status = 'Accepted'), 0)
            + coalesce((SELECT sum(q.batch_size_bytes) FROM buffer_publishes q
                         WHERE q.org_id = org AND q.status = 'Dead'), 0))::bigint;
END;
COMMENT ON FUNCTION object_bytes_of IS
    'Bytes of an organisation in the object store: files of datasets that are not deleted yet, bundles, and batches that are not in their table.';

CREATE FUNCTION is_storage_full(org uuid) RETURNS boolean
LANGUAGE sql STABLE
RETURN coalesce((SELECT s.bytes >= org_limit(org, 'object_bytes') FROM org_storage s WHERE s.org_id = org), false);
COMMENT ON FUNCTION is_storage_full IS 'Whether an organisation stores as much as its limit of object_bytes allows.';

CREATE FUNCTION org_slots(org uuid, every boolean)
RETURNS TABLE (name text, runtimes text[], most bigint, used bigint, bulk bigint, waiting bigint)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT l.name, l.runtimes, l.most, f.used, f.bulk, f.waiting
      FROM (VALUES ('tasks', NULL::text[], org_limit(org, 'tasks')),
                   ('sandboxes', ARRAY(SELECT runtime FROM sandboxed_runtimes), org_limit(org, 'sandboxes')),
                   ('functions', ARRAY(SELECT runtime FROM sandboxed_runtimes WHERE is_function), org_limit(org, 'functions'))) AS l (name, runtimes, most)
      CROSS JOIN LATERAL (
          SELECT count(t.id) FILTER (WHERE t.woken_at IS NOT NULL) AS used,
                 count(t.id) FILTER (WHERE t.woken_at IS NOT NULL AND t.priority = 'bulk') AS bulk,
                 count(t.id) FILTER (WHERE t.woken_at IS NULL AND every) AS waiting
            FROM jobs j
            CROSS JOIN LATERAL (
                SELECT i.id, i.woken_at, i.priority FROM tasks i
                 WHERE i.job_id = j.id AND i.status IN ('Queued', 'Running') AND i.woken_at IS NOT NULL
                UNION ALL
                SELECT w.id, w.woken_at, w.priority FROM tasks w
                 WHERE every AND w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NULL) t
           WHERE j.org_id = org AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
             AND (l.runtimes IS NULL OR j.runtime = ANY (l.runtimes))) f
     WHERE every OR l.most IS NOT NULL;
END;
COMMENT ON FUNCTION org_slots IS
    'The limits of an organisation for tasks in flight, the runtimes that each is about (NULL: all), and how many tasks are in flight, are so with priority bulk, and wait. `every`: also where there is no limit.';

CREATE FUNCTION shares_limit(org uuid, of_operator text, of_runtime text) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT FROM in_flight_limits l
                WHERE (l.kind = 'operator' AND l.name = of_operator) OR (l.kind = 'runtime' AND l.name = of_runtime))
    OR EXISTS (SELECT FROM unnest(ARRAY['tasks', 'sandboxes', 'functions', 'object_bytes']) AS n (name)
                WHERE org_limit(org, n.name) IS NOT NULL);
COMMENT ON FUNCTION shares_limit IS
    'Whether tasks of a job may have to wait for a limit that is not their job''s own.';

COMMENT ON COLUMN jobs.shares_limit IS
    'Whether in_flight_limits has a row for its operator or its runtime, or org_limits one for its organisation that holds tasks back.';
COMMENT ON COLUMN tasks.woken_at IS
    'When its wake-up was written to the outbox; NULL: it waits for a slot of its job (max_concurrency), operator or runtime (in_flight_limits) or organisation (org_limits), or, as a task of a source, for the end of a pause.';
