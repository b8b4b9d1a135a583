"""Rows on their way: hot tables, buffered datasets, files, and Postgres."""
