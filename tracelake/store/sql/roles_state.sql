-- Run in database state by ensure_roles, each time: the Dispatcher reads and writes rows.
REVOKE ALL ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dispatcher;

GRANT CONNECT ON DATABASE state TO dispatcher;
GRANT USAGE ON SCHEMA public TO dispatcher;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO dispatcher;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO dispatcher;
-- The same for tables of later migrations.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO dispatcher;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO dispatcher;

-- To check the schema before it serves.
GRANT USAGE ON SCHEMA trace_migrations TO dispatcher;
GRANT SELECT ON trace_migrations.applied TO dispatcher;
