"""Commands for tasks and sources: list, explain, retry, trigger."""
