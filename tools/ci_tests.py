"""Runs the tests as CI does: those that fail are run once more, alone, and must pass then.

A test that passes only when it is run again is unstable: it is named in the last line, after pytest's own summary, and
more than two of them fail the run. Standard library only.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

TEST = ("make", "-s", "test", "ARGS=--long")
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
AGAIN = ("make", "-s", "test", "WORKERS=0", "ARGS=--long --last-failed --last-failed-no-failures none --maxfail 5")
"""Not all of very many: whatever is broken fails the run, and one is enough for that."""
MOST_UNSTABLE = 2


def main() -> int:
    LAST_FAILED.unlink(missing_ok=True)
    if run(*TEST) == 0:
        return 0
    failed = last_failed()
    if not failed:
        return 1  # not for a test: pytest itself could not run, and has printed why
    print("\nFailed above, so run again alone:", flush=True)
    status = run(*AGAIN)
    unstable = sorted(failed - last_failed())
    if unstable:
        print(f"Passed only when run again, so unstable ({MOST_UNSTABLE} at most): {', '.join(unstable)}", flush=True)
    return 1 if status or len(unstable) > MOST_UNSTABLE else 0


def run(*command: str) -> int:
    """Its exit status. What make says of a failed recipe is left out, so that pytest's summary is the last line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            if not re.match(rb"make(\[\d+\])?: \*\*\* ", line):
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
    return process.returncode


def last_failed() -> set[str]:
    """The tests, and files, that pytest remembers as failed."""
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


if __name__ == "__main__":
    sys.exit(main())
