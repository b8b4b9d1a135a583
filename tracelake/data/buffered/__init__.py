"""Buffered datasets: batches are checked, staged, merged and read."""
