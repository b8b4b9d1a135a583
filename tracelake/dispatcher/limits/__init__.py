"""Limits of organisations: set, shown, measured, and where they are checked."""
