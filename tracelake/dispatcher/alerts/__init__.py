"""Alerts and channels: defined by users, read by tasks and by the delivery process."""
