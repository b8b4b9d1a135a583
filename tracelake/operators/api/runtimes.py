"""The runtimes that operators of this package name."""

from typing import Final

IN_DISPATCHER: Final = "dispatcher"
"""In the Dispatcher: pure functions of the task and its state, without rows."""
ON_WORKERS: Final = "ecs_platform"
"""On trusted workers, with Spark."""
IN_SANDBOXES: Final = frozenset({"lambda", "ecs_udf"})
"""User code, in a sandbox."""
