"""Filters on inputs (`where`)."""
