"""Verifies datasets: their ledger, and the files that it names."""
