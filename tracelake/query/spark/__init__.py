"""Queries on Spark."""
