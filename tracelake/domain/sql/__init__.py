"""SQL of users: the gate that checks it, its bounds, columns and lineage."""
