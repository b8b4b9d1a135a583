"""Benchmarks: `python -m bench.NAME`; the last line printed is one JSON object. Ratios in one run."""
