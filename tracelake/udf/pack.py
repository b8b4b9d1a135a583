"""Packs a folder into a bundle, with the SDK: the same files give the same bytes on every machine."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelake.domain.bundle.rules import (
    BOOTSTRAP,
    DEFAULT_HANDLER,
    LIMITS,
    NODE_ENDINGS,
    Bundle,
    BundleKind,
    BundleLimits,
    check,
    entry_points,
)
from tracelake.errors import InvalidBundle

LEFT_OUT: Final = frozenset(
    {"__pycache__", ".git", ".hg", ".svn", ".venv", "venv", ".env", ".idea", ".vscode", ".DS_Store"}
    | {".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".gitignore", ".npmrc"}
)
"""Files that are not code, or are private."""
LEFT_OUT_ENDINGS: Final = (".pyc", ".pyo", ".swp", "~")
BEGINNING: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time in a zip: the bytes do not depend on the clock."""
UNIX: Final = 3
SDK: Final = Path(__file__).parents[2] / "trace_udf"


@dataclass(frozen=True)
class Packed:
    archive: bytes
    kind: BundleKind
    handler: str
    bundle: Bundle


def pack(
    folder: Path, kind: BundleKind | None = None, handler: str | None = None, *, limits: BundleLimits = LIMITS
) -> Packed:
    """Packs the folder; InvalidBundle if it breaks a rule."""
    if not folder.is_dir():
        raise InvalidBundle("there is no such folder", reason="empty", where=str(folder))
    files = dict(_files(folder))
    kind = kind or kind_of(files, folder)
    for name, path in _sdk(kind):
        files.setdefault(name, path)
    return judged(zipped(files), kind, handler, limits=limits)


def judged(
    archive: bytes, kind: BundleKind | None = None, handler: str | None = None, *, limits: BundleLimits = LIMITS
) -> Packed:
    """Checks an existing zip; kind and handler are detected if not given."""
    bundle = check(archive, limits=limits)
    kind = kind or kind_of({entry.path: None for entry in bundle.files})
    handler = handler or _handler(bundle, kind)
    check(archive, kind=kind, handler=handler, limits=limits)
    return Packed(archive, kind, handler, bundle)


def kind_of(files: dict[str, Path] | dict[str, None], folder: Path | None = None) -> BundleKind:
    """By the files at the root: an executable `bootstrap`, else Python, else Node."""
    roots = [name for name in files if "/" not in name]
    if BOOTSTRAP in roots and (folder is None or os.access(folder / BOOTSTRAP, os.X_OK)):
        return "bootstrap"
    own = [name for name in roots if name != "trace_udf.js"]
    if any(name.endswith(".py") for name in own):
        return "python"
    if any(name.endswith(NODE_ENDINGS) for name in own):
        return "node"
    raise InvalidBundle(
        "there is nothing to run at the root: no .py, no .js or .mjs, and no executable `bootstrap`",
        reason="no_entry_point",
        hint="put `main.py` with a function `handler` there, or give --kind",
    )


def _handler(bundle: Bundle, kind: BundleKind) -> str:
    points = entry_points(bundle, kind)
    return "index.handler" if kind == "node" and "main" not in points and "index" in points else DEFAULT_HANDLER


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in [*folders, *names]:
            _refuse_special(Path(base, name), folder)
        for name in sorted(names):
            if name not in LEFT_OUT and not name.endswith(LEFT_OUT_ENDINGS):
                path = Path(base, name)
                yield path.relative_to(folder).as_posix(), path


def _refuse_special(path: Path, folder: Path) -> None:
    """Refuses links, which may lead anywhere, and other special files."""
    mode = path.lstat().st_mode
    if path.name not in LEFT_OUT and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
        where = path.relative_to(folder).as_posix()
        raise InvalidBundle(f"{where} is {what}", reason="special_file", where=where, hint="put the file itself there")


def _sdk(kind: BundleKind) -> Iterator[tuple[str, Path]]:
    """The SDK, unless the folder has its own."""
    if kind == "python":
        yield from ((f"{SDK.name}/{path.name}", path) for path in sorted(SDK.glob("*.py")))
    elif kind == "node":
        yield "trace_udf.js", SDK / "node" / "trace_udf.js"


def zipped(files: Mapping[str, Path]) -> bytes:
    """A zip whose bytes depend on nothing but the files."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(files.items()):
            entry = zipfile.ZipInfo(name, BEGINNING)
            runs = bool(path.stat().st_mode & stat.S_IXUSR)
            entry.create_system = UNIX
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return into.getvalue()
