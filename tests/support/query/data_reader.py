"""A role of data Postgres that may only read, as the Query service's."""

from __future__ import annotations

from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo


def reader_of(data_dsn: str) -> str:
    """Return the DSN of a new role with the grants of role query in `roles_data.sql`."""
    name = f"reader_{uuid4().hex[:8]}"
    with psycopg.connect(data_dsn, autocommit=True) as admin:
        role = sql.Identifier(name)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        admin.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(role))
        admin.execute(sql.SQL("GRANT USAGE ON SCHEMA hot, buffered, trace_meta TO {}").format(role))
        admin.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA trace_meta TO {}").format(role))
        for schema in (sql.SQL("hot"), sql.SQL("buffered")):
            made = sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA {} GRANT SELECT ON TABLES TO {}")
            admin.execute(made.format(schema, role))
        database = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, role))
    return make_conninfo(data_dsn, user=name, password="x")
