"""`trace why`: explains a task, a dataset, a partition or an event."""
