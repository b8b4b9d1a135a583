"""State, data and queue Postgres: migrations, roles, named SQL and its typed rows."""
