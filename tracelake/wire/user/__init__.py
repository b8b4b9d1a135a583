"""Messages and calls of the user API, one module per subject."""
