"""DAGs: deployed as versions, activated, listed."""
