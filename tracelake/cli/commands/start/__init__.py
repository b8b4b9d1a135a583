"""Commands that start, stop and check a Trace on this machine."""
