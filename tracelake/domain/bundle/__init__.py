"""What a bundle of user code may be."""
