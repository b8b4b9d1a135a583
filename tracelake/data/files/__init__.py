"""Files: Parquet of our own, and Parquet, CSV and JSON that others wrote."""
