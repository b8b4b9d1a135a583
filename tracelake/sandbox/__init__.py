"""Isolated processes: for user code, and for engines that run queries."""
