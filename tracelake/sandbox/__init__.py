"""Isolated processes: untrusted code of users, and the engines that run their queries."""
