"""Rows from and to data Postgres: the Spark source, staging tables, COPY."""
