"""Cron sources of Lite."""
