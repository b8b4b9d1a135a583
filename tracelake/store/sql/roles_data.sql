-- Run in database data by ensure_roles, each time: workers read, write and create tables; the query service reads; the
-- delivery process uses its work items and nothing else.
REVOKE ALL ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA hot, buffered, trace_meta FROM query;
REVOKE ALL ON ALL TABLES IN SCHEMA trace_meta FROM worker;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA trace_meta FROM worker, query;

GRANT CONNECT, TEMPORARY ON DATABASE data TO worker;
-- Batches are staged in tables of their own before they are merged; no other role reads them.
GRANT USAGE, CREATE ON SCHEMA hot, buffered, staging TO worker;
GRANT USAGE ON SCHEMA trace_meta TO worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA hot, buffered, trace_meta TO worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA trace_meta TO worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA hot GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA trace_meta GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO worker;

GRANT CONNECT ON DATABASE data TO query;
GRANT USAGE ON SCHEMA hot, buffered, trace_meta TO query;
GRANT SELECT ON ALL TABLES IN SCHEMA hot, buffered, trace_meta TO query;
ALTER DEFAULT PRIVILEGES IN SCHEMA hot GRANT SELECT ON TABLES TO query;
ALTER DEFAULT PRIVILEGES IN SCHEMA trace_meta GRANT SELECT ON TABLES TO query;
-- The query service also reads tables that workers create later.
ALTER DEFAULT PRIVILEGES FOR ROLE worker IN SCHEMA hot, buffered GRANT SELECT ON TABLES TO query;

-- Work items: workers insert them and cannot read or change them; the delivery process ends and prunes them and cannot
-- insert any.
REVOKE ALL ON ALL TABLES IN SCHEMA alerts FROM worker, query, delivery;
GRANT USAGE ON SCHEMA alerts TO worker, delivery;
GRANT INSERT ON alerts.deliveries TO worker;
GRANT CONNECT ON DATABASE data TO delivery;
GRANT SELECT ON alerts.deliveries TO delivery;
GRANT EXECUTE ON FUNCTION alerts.prune_deliveries TO delivery;
GRANT UPDATE (status, attempts, due_at, lease_token, at_any_age, last_error, settled_at) ON alerts.deliveries TO delivery;

-- To check the schema before they serve.
GRANT USAGE ON SCHEMA trace_migrations TO worker, query, delivery;
GRANT SELECT ON trace_migrations.applied TO worker, query, delivery;

-- Large objects belong to no schema: every role that may connect may write them. Only a superuser can revoke that; else
-- the read-only transactions of role query prevent it.
DO $$
BEGIN
    REVOKE EXECUTE ON FUNCTION
        pg_catalog.lo_create(oid), pg_catalog.lo_creat(integer), pg_catalog.lo_from_bytea(oid, bytea),
        pg_catalog.lo_put(oid, bigint, bytea), pg_catalog.lowrite(integer, bytea)
    FROM PUBLIC;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;
