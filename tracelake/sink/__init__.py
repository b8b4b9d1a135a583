"""Drains buffered batches into data Postgres, once."""
