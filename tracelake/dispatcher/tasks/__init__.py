"""The life of a task: claimed, renewed, completed, failed, canceled, retried."""
