"""Compares a dataset at two commits, on Spark."""
