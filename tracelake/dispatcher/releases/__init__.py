"""Releases: DAG versions that are planned, built beside the active ones, promoted together, and rolled back."""
