"""The delivery process: the only one that sends alerts to users' addresses."""
