"""The queue on SQS."""
