"""Messages between processes of Trace: queries, comparisons, identities, sources, changes, node shares."""
