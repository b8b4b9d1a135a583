"""Messages of the task API: the life of a task, its outputs, batches of rows, the marker of its files."""
