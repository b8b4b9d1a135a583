"""What is done to text that others wrote before a person reads it."""
