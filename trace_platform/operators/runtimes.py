"""The runtimes that operators of this package name."""

from typing import Final

IN_DISPATCHER: Final = "dispatcher"
"""Run by the Dispatcher itself: pure functions over the task and their own state, without rows."""
ON_WORKERS: Final = "ecs_platform"
"""Run by trusted workers, on Spark."""
FUNCTIONS: Final = "lambda"
"""Invoked by the Dispatcher: code that is not ours, in sandboxes that stay warm."""
SANDBOXES: Final = "ecs_udf"
"""Code that is not ours, one sandbox a task, with a wrapper of ours around it."""
