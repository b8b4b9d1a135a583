"""Queries on Sail, an engine in Rust that speaks the protocol of Spark Connect; one sandboxed process an organisation.

In the order of one query: `translate` (writes it for Sail, or says that Spark runs it), `engine` (runs it), `pool` (the
processes of organisations), `server` (one process), `staged_files` (what it can read), `connect` (the protocol).
"""
