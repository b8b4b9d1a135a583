"""Verbs of admins: users, roles, organisations; and the tokens of every user."""
