"""Versions over time: what a job lacks, and how it catches up."""
