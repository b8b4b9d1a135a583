"""The command line: one file per verb. Errors are printed as sentences, never as stack traces."""

from tracelake.cli.app import main

__all__ = ["main"]
