"""SQL of Spark's dialect, rewritten where Sail answers differently."""
