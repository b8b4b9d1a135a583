"""The runtimes that operators of this package name."""

from typing import Final

IN_DISPATCHER: Final = "dispatcher"
"""In the Dispatcher: pure functions of the task and its state, without rows."""
ON_WORKERS: Final = "ecs_platform"
"""On trusted workers, with Spark."""
ON_SPARK: Final = frozenset({ON_WORKERS, "emr_serverless"})
"""Wherever there is Spark: for operators that read and write files, and need no database, node or folder."""
IN_SANDBOXES: Final = frozenset({"lambda", "ecs_udf"})
"""User code, in a sandbox."""
