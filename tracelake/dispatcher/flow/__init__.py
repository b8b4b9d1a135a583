"""Backpressure: which jobs are paused, and what waits for them."""
