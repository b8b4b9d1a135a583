"""The trusted wrapper: one warm Spark session, many tasks."""
