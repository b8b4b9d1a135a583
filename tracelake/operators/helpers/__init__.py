"""Code that several operators share, or that would make one of them too long."""
