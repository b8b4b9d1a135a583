"""Credentials of tasks for the object store."""
