"""Installs checkov, which judges the template on AWS, once; `make test EXTRAS=aws` runs it first.

It needs other versions of packages of the lock, so it has an environment of its own in .cache/. Without a network there
is none: this says so and ends well, and the test that needs it fails, since the extra asks for it. Standard library
only.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = ROOT / "deploy" / "aws" / "checkov.txt"
FOLDER = ROOT / ".cache" / "checkov"
SECONDS = 600


def main() -> None:
    if is_installed():
        return
    try:
        install()
    except (OSError, subprocess.SubprocessError) as why:
        print(f"No checkov: {why}", file=sys.stderr)


def is_installed() -> bool:
    done = FOLDER / "installed.txt"
    return done.exists() and done.read_bytes() == WANTED.read_bytes()


def install() -> None:
    """Half of an environment is none: what is installed is written last."""
    venv.create(FOLDER, clear=True, with_pip=True)
    command = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries", "1", "-r", str(WANTED)]
    with tempfile.TemporaryDirectory() as elsewhere:
        subprocess.run(command, check=True, timeout=SECONDS, cwd=elsewhere)
    (FOLDER / "installed.txt").write_bytes(WANTED.read_bytes())


if __name__ == "__main__":
    main()
