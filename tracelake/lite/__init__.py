"""Lite: everything that makes one machine by pip alone a whole Trace: embedded Postgres, supervisor, certificates."""
