"""The outbox: entries are drained, dispatched, listed and retried."""
