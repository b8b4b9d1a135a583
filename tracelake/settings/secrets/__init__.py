"""References to secrets in settings, and how they are read."""
