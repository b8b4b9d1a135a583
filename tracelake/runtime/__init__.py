"""What every process uses: its frame, listeners, TLS, limits, retries, logs, metrics, traces and crash points."""
