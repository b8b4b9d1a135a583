"""The queue on Postgres."""
