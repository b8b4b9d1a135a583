"""Turns every failure of reading a CSV or JSON file into our error, with the file, the line and what to do."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tracelake.errors import WorkFailed

PACKED: Final = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
AS_UTF_8: Final = "save the file as UTF-8"


@contextmanager
def readable(path: Path, name: str) -> Iterator[None]:
    """While a file is read. A broken file stays broken: only a failing disk is worth a retry."""
    try:
        _refuse_other_kinds(path, name)
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path, name, error) from None
    except (csv.Error, RecursionError) as error:
        raise WorkFailed(f"{name} cannot be read: {error}", where="/config/path", hint="correct the file") from None
    except FileNotFoundError:
        raise WorkFailed(
            f"{name} disappeared while the job ran",
            where="/config/path",
            hint="trigger the job again when no files are being moved",
        ) from None
    except PermissionError:
        raise WorkFailed(
            f"{name} may not be read by this worker", where="/config/path", hint="give its user the right to read it"
        ) from None
    except OSError as error:
        lasting = isinstance(error, IsADirectoryError | NotADirectoryError)
        raise WorkFailed(
            f"{name} cannot be read: {error.strerror or error}",
            where="/config/path",
            hint="put a file there" if lasting else "look at the disk that the folder of files lies on",
            retryable=not lasting,
        ) from None


def _refuse_other_kinds(path: Path, name: str) -> None:
    """Check the first bytes: a name proves nothing."""
    with path.open("rb") as file:
        first = file.read(8)
    for magic, kind in PACKED.items():
        if first.startswith(magic):
            raise WorkFailed(
                f"{name} is packed with {kind}, and packed files are not read",
                where="/config/path",
                hint="unpack it, or leave it out by `pattern`",
            )
    if first.startswith(UTF_16):
        raise WorkFailed(f"{name} is UTF-16, and only UTF-8 is read", where="/config/path", hint=AS_UTF_8)


def _not_utf8(path: Path, name: str, error: UnicodeDecodeError) -> WorkFailed:
    """Find the line of the error: files are decoded in pieces, so the reader does not know it."""
    line, byte = "", error.object[error.start]
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as found:
        number = 1 + found.object.count(b"\n", 0, found.start)
        line, byte = f": line {number}", found.object[found.start]
    except OSError:
        pass
    return WorkFailed(f"{name}{line} is not UTF-8: byte {byte:#04x}", where="/config/path", hint=AS_UTF_8)
