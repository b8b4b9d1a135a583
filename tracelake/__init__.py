"""Trace: a data platform whose rows move on Spark and whose control state lives in Postgres."""
