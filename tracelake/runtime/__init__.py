"""What every process stands on: its frame, listeners, TLS, limits, logs, metrics, traces and crash points."""
