"""Batches of buffered datasets: published by tasks, settled by the sink, replayed by users."""
