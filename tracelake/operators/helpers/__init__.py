"""What several operators share, or what would make one of them too long to read."""
