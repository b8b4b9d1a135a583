"""Commands for DAGs, datasets, queries, functions and alerts."""
