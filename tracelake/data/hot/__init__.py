"""Hot tables: recent blocks in Postgres, and their older rows in Parquet."""
