"""What a bundle of user code may be: a zip whose every entry is a plain file or folder below its root, of bounded size.

`check` reads all of it, also what is packed, and believes nothing that is only declared. What passed can be unpacked
anywhere: no path leaves the folder, no two entries meet in one file on any file system, and nothing is left to the
reader's taste (`bundle/zip_file.py`).
"""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tracelake.domain.bundle.zip_file import Record, content, invalid_entry, records
from tracelake.errors import InvalidBundle

BundleKind = Literal["python", "node", "bootstrap"]

MIB: Final = 1024 * 1024
RATIO_FREE_BYTES: Final = MIB
"""Up to here an entry may shrink as much as it can: a file of one letter is no bomb."""
MOST_PATH_BYTES: Final = 1024
MOST_NAME_BYTES: Final = 255
DRIVE: Final = re.compile(r"[A-Za-z]:")
NODE_ENDINGS: Final = (".js", ".mjs", ".cjs")
BOOTSTRAP: Final = "bootstrap"
DEFAULT_HANDLER: Final = "main.handler"


@dataclass(frozen=True, slots=True)
class BundleLimits:
    archive_bytes: int = 50 * MIB
    unpacked_bytes: int = 250 * MIB
    """As AWS Lambda has it."""
    files: int = 10_000
    """Folders are counted too."""
    ratio: int = 200
    """How many times larger than packed an entry may be, once it is larger than a mebibyte."""


LIMITS: Final = BundleLimits()


@dataclass(frozen=True, slots=True)
class BundleEntry:
    path: str
    """Below the root, with `/` between names; none at the end of a folder's."""
    folder: bool
    executable: bool
    record: Record


@dataclass(frozen=True, slots=True)
class Bundle:
    entries: tuple[BundleEntry, ...]
    unpacked_bytes: int

    @property
    def files(self) -> tuple[BundleEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.folder)


def check(
    archive: bytes, *, kind: BundleKind | None = None, handler: str | None = None, limits: BundleLimits = LIMITS
) -> Bundle:
    """The bundle, if it keeps every rule; else InvalidBundle, which names the entry. Reads all that is packed."""
    bundle = listing(archive, limits)
    for entry in bundle.files:
        for _ in content(archive, entry.record):
            pass
    if kind is not None:
        check_entry_point(bundle, kind, handler)
    return bundle


def listing(archive: bytes, limits: BundleLimits = LIMITS) -> Bundle:
    """The same without unpacking: read the contents with `content`, which checks them."""
    if len(archive) > limits.archive_bytes:
        message = f"the zip has {len(archive)} bytes; at most {limits.archive_bytes} are taken"
        raise InvalidBundle(message, reason="too_large", hint="leave out what the function does not need")
    entries = tuple(_entry(record) for record in records(archive, limits.files))
    if not entries:
        raise InvalidBundle("the zip is empty", reason="empty")
    _check_sizes(entries, limits)
    _refuse_meetings(entries)
    return Bundle(entries, sum(entry.record.size for entry in entries))


def contents(archive: bytes, entry: BundleEntry) -> Iterator[bytes]:
    """What a file holds, piece by piece, checked against what was declared."""
    return content(archive, entry.record)


def entry_points(bundle: Bundle, kind: BundleKind) -> tuple[str, ...]:
    """What a handler may name, as it is written before the last dot; sorted."""
    found = (point for entry in bundle.files if (point := _point(entry, kind)) is not None)
    return tuple(sorted(set(found)))


def check_entry_point(bundle: Bundle, kind: BundleKind, handler: str | None) -> None:
    """Whether there is anything to run; with a handler, whether it is that."""
    found = entry_points(bundle, kind)
    if not found:
        raise InvalidBundle(NO_ENTRY[kind], reason="no_entry_point", hint=ENTRY_HINT[kind])
    if handler is not None:
        check_handler(found, kind, handler)


def check_handler(found: Sequence[str], kind: BundleKind, handler: str) -> None:
    """`found`: the entry points of the bundle. A bootstrap gets the handler as it is and makes of it what it likes."""
    if kind == BOOTSTRAP:
        return
    module, dot, function = handler.rpartition(".")
    if not (dot and module and function):
        message = f"the handler {handler!r} is not of the form module.function"
        raise InvalidBundle(message, reason="no_entry_point", where=handler, hint=f"such as {DEFAULT_HANDLER}")
    wanted = module.replace(".", "/") if kind == "python" else module.removeprefix("./")
    if wanted not in found:
        near = ", ".join(sorted(found, key=lambda item: (item.count("/"), item))[:5])
        message = f"the bundle has no module {module!r}, which the handler {handler!r} names"
        raise InvalidBundle(message, reason="no_entry_point", where=handler, hint=f"it has: {near}")


NO_ENTRY: Final[dict[BundleKind, str]] = {
    "python": "a bundle of kind python holds at least one .py file",
    "node": "a bundle of kind node holds at least one .js, .mjs or .cjs file",
    "bootstrap": "a bundle of kind bootstrap holds an executable file `bootstrap` at its root",
}
ENTRY_HINT: Final[dict[BundleKind, str]] = {
    "python": "put `main.py` with a function `handler` at the root of the zip",
    "node": "put `main.js`, which exports `handler`, at the root of the zip",
    "bootstrap": "`chmod +x bootstrap`, and pack it with its rights (`trace udf build` keeps them)",
}


def _point(entry: BundleEntry, kind: BundleKind) -> str | None:
    path = entry.path
    if kind == "python":
        return path.removesuffix(".py").removesuffix("/__init__") if path.endswith(".py") else None
    if kind == "node":
        return next((path.removesuffix(end) for end in NODE_ENDINGS if path.endswith(end)), None)
    return path if path == BOOTSTRAP and entry.executable else None


def _entry(record: Record) -> BundleEntry:
    path = _path(record)
    folder = path.endswith("/")
    kind = stat.S_IFMT(record.mode)
    if kind not in (0, stat.S_IFDIR if folder else stat.S_IFREG):
        what = "a link" if stat.S_ISLNK(record.mode) else "neither a plain file nor a folder"
        raise invalid_entry(record, f"is {what}", "special_file", "pack the file itself")
    if folder and (record.size or record.packed):
        raise invalid_entry(record, "is a folder with content", "special_file")
    return BundleEntry(path.rstrip("/"), folder, bool(record.mode & 0o111) and not folder, record)


def _path(record: Record) -> str:
    """The name as text, if it is one that stays below the root on any system."""
    try:
        path = record.raw_name.decode("utf-8" if record.utf8 else "ascii")
    except UnicodeDecodeError:
        hint = "`trace udf build` writes names as they are read everywhere"
        raise invalid_entry(record, "has a name that is not marked as UTF-8, or is none", "bad_name", hint) from None
    if any(unicodedata.category(letter)[0] == "C" for letter in path):
        raise invalid_entry(record, "has a control character in its name", "control_character")
    if unicodedata.normalize("NFC", path) != path:
        raise invalid_entry(record, "has a name that Unicode spells in another way", "bad_name")
    if "\\" in path:
        raise invalid_entry(record, "has a backslash in its name", "backslash", "use / between folders")
    if path.startswith("/") or DRIVE.match(path):
        raise invalid_entry(record, "has an absolute name", "absolute", "pack from within the folder")
    names = path.removesuffix("/").split("/")
    if ".." in names:
        raise invalid_entry(record, "leads out of the bundle", "parent")
    if "" in names or "." in names:
        raise invalid_entry(record, "has an empty name or '.' in its path", "bad_name")
    if len(record.raw_name) > MOST_PATH_BYTES or any(len(name.encode()) > MOST_NAME_BYTES for name in names):
        raise invalid_entry(record, "has too long a name", "bad_name")
    return path


def _check_sizes(entries: Sequence[BundleEntry], limits: BundleLimits) -> None:
    total = 0
    for entry in entries:
        size, packed = entry.record.size, entry.record.packed
        total += size
        if size > RATIO_FREE_BYTES and size > packed * limits.ratio:
            message = f"would grow {size // max(1, packed)} times; at most {limits.ratio} times is taken"
            raise invalid_entry(entry.record, message, "bomb")
        if total > limits.unpacked_bytes:
            message = f"brings the bundle over {limits.unpacked_bytes} bytes unpacked"
            raise invalid_entry(entry.record, message, "bomb", "leave out what the function does not need")


def _refuse_meetings(entries: Sequence[BundleEntry]) -> None:
    """No two entries may be one file: not by the same name, not where capitals do not count, not file and folder."""
    seen = dict[str, tuple[str, bool]]()
    given = set[str]()
    for entry in entries:
        if entry.path in given:
            raise invalid_entry(entry.record, "is there twice", "duplicate")
        given.add(entry.path)
        for path, folder in _steps(entry):
            was = seen.setdefault(_folded(path), (path, folder))
            if was[0] != path:
                raise invalid_entry(entry.record, f"differs from {was[0]} in nothing but capitals", "case_conflict")
            if was[1] != folder:
                raise invalid_entry(entry.record, f"makes {path} a file and a folder at once", "duplicate")


def _steps(entry: BundleEntry) -> Iterator[tuple[str, bool]]:
    """The folders on the way, and the entry itself."""
    at = entry.path.find("/")
    while at >= 0:
        yield entry.path[:at], True
        at = entry.path.find("/", at + 1)
    yield entry.path, entry.folder


def _folded(path: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
