"""Organisations, users, roles and their members, and who may read which dataset: verbs of admins."""
