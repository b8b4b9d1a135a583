"""Spark itself: its Java, its session, its configuration, and the check of its plans."""
