"""Lite: all of Trace on one machine, installed with pip alone: embedded Postgres, supervisor, certificates."""
