"""What `trace doctor` checks."""
