"""Who may touch what: grants, object names, storage policies."""
