"""Fetches anvil, a real Ethereum node for tests, once, through npm; `make test` runs it first.

Its npm package is one program for each kind of machine: it is packed by npm, checked against the hash below, and put
into .cache/. Without npm, without a network, or on another kind of machine there is none: this says so and ends well,
and the tests that need it are skipped. Standard library only.
"""

import base64
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1.7.1"
PACKED = {
    ("linux", "x86_64"): (
        "linux-amd64",
        "+XmShybEaxfCrr0OUUZwYEy2OnYZt5pHH9TzBtLv3+VrK0O/ANuNSVEahqNhKHlgX7GRJ59383ofNhxkRWIYTg==",
    ),
}
"""By system and processor: the package's name, and the SHA-512 of its archive as npm writes it."""
PROGRAM = Path(__file__).resolve().parent.parent / ".cache" / f"anvil-{VERSION}"
SECONDS = 90


def main() -> None:
    if PROGRAM.exists():
        return
    try:
        fetch()
    except (OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as why:
        print(f"No anvil, so tests against it are skipped: {why}", file=sys.stderr)


def fetch() -> None:
    kind = PACKED.get((sys.platform, platform.machine()))
    npm = shutil.which("npm")
    if kind is None or npm is None:
        raise ValueError("there is no npm" if kind else f"none is known for {sys.platform} {platform.machine()}")
    PROGRAM.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PROGRAM.parent) as folder:
        archive = Path(folder) / pack(npm, kind[0], folder)
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != kind[1]:
            raise ValueError(f"what npm fetched is not the anvil that was expected (its SHA-512 is {digest})")
        unpack(archive, Path(folder) / "anvil")
        (Path(folder) / "anvil").replace(PROGRAM)


def pack(npm: str, kind: str, folder: str) -> str:
    """The archive's name."""
    command = [npm, "pack", f"@foundry-rs/anvil-{kind}@{VERSION}", "--json", "--pack-destination", folder]
    command += ["--fetch-retries", "0"]  # who is offline waits a second, not minutes
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder, timeout=SECONDS)
    if done.returncode:
        raise ValueError(f"npm could not fetch it: {last_line(done.stderr)}")
    return str(json.loads(done.stdout)[0]["filename"])


def last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if "error" in line]
    return lines[0] if lines else "it does not say why"


def unpack(archive: Path, program: Path) -> None:
    with tarfile.open(archive) as packed:
        inside = packed.extractfile("package/bin/anvil")
        if inside is None:
            raise ValueError("its package has no program")
        with program.open("wb") as file:
            shutil.copyfileobj(inside, file)
    program.chmod(0o755)


if __name__ == "__main__":
    main()
