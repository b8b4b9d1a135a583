"""The runtimes that operators of this package name."""

from typing import Final

IN_DISPATCHER: Final = "dispatcher"
"""Run by the Dispatcher itself: pure functions over the task and their own state, without rows."""
ON_WORKERS: Final = "ecs_platform"
"""Run by trusted workers, on Spark."""
IN_SANDBOXES: Final = frozenset({"lambda", "ecs_udf"})
"""Run code that is not ours, walled in."""
