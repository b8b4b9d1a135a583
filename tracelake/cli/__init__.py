"""The command line: one verb, one file. A refusal is said as a person would say it; nobody sees a stack trace."""

from tracelake.cli.app import main

__all__ = ["main"]
