-- Run in database queue by ensure_roles, each time: the queue is reached through its functions and in no other way.
REVOKE ALL ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON SCHEMA pgqueue FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pgqueue FROM PUBLIC, queue;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgqueue FROM PUBLIC, queue;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgqueue FROM PUBLIC;
-- What later migrations make is for role queue alone, too.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES IN SCHEMA pgqueue GRANT EXECUTE ON FUNCTIONS TO queue;

GRANT CONNECT ON DATABASE queue TO queue;
GRANT USAGE ON SCHEMA pgqueue TO queue;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO queue;
