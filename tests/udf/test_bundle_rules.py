"""A zip of user code is taken only if every reader sees the same plain files in it, of bounded size."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.udf.bundles import Made, by_hand, zipped
from tracelake.domain.bundle.rules import BundleLimits, check, contents, entry_points
from tracelake.errors import InvalidBundle, ObjectExists
from tracelake.udf.unpack import remove_unpacked, unpack

SMALL = BundleLimits(archive_bytes=1 << 20, unpacked_bytes=1 << 22, files=20, ratio=100)
MAIN = Made(b"main.py", b"def handler(event, context): ...\n")
INNER = by_hand([Made(b"inner.py", b"inner")])
QUINE_NAME = struct.pack("<2H", 0x7075, 5 + 7) + b"\x01" + struct.pack("<L", zlib.crc32(b"a.py")) + b"../evil"

HOSTILE: dict[str, tuple[str, bytes]] = {
    "leads to the parent": ("parent", zipped(("../evil.py", b"x"))),
    "leads to the parent from within": ("parent", zipped(("a/../../evil.py", b"x"))),
    "ends in the parent": ("parent", zipped(("a/..", b"x"))),
    "is absolute": ("absolute", zipped(("/etc/passwd", b"x"))),
    "has a drive": ("absolute", zipped(("C:evil.py", b"x"))),
    "has a backslash": ("backslash", by_hand([Made(b"..\\evil.py")])),
    "has an empty name": ("bad_name", by_hand([Made(b"")])),
    "has an empty step": ("bad_name", zipped(("a//b.py", b"x"))),
    "has a dot step": ("bad_name", zipped(("./main.py", b"x"))),
    "has a NUL": ("control_character", by_hand([Made(b"main.py\x00.txt")])),
    "has a newline": ("control_character", zipped(("main\n.py", b"x"))),
    "has an escape": ("control_character", zipped(("\x1b[2Jmain.py", b"x"))),
    "turns the reading direction": ("control_character", zipped(("\u202egp.py", b"x"))),
    "is not UTF-8": ("bad_name", by_hand([Made(b"\xff\xfe.py", flags=0x800)])),
    "is of another code page": ("bad_name", by_hand([Made(b"caf\x82.py")])),
    "has two spellings": ("bad_name", zipped(("cafe\u0301.py", b"x"))),
    "has too long a name": ("bad_name", zipped((f"{'a' * 256}.py", b"x"))),
    "has too long a path": ("bad_name", zipped(("/".join(["a" * 200] * 6), b"x"))),
    "is a symlink": ("special_file", zipped(("main.py", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777)),
    "is a device": ("special_file", zipped(("main.py", b""), mode=stat.S_IFCHR | 0o666)),
    "is a pipe": ("special_file", zipped(("main.py", b""), mode=stat.S_IFIFO | 0o666)),
    "is a socket": ("special_file", zipped(("main.py", b""), mode=stat.S_IFSOCK | 0o666)),
    "is a file by name and a folder by kind": ("special_file", zipped(("main.py", b""), mode=stat.S_IFDIR | 0o755)),
    "is a folder with content": ("special_file", by_hand([Made(b"a/", b"x", mode=0)])),
    "is there twice": ("duplicate", by_hand([MAIN, MAIN])),
    "is a file and a folder": ("duplicate", zipped(("a", b"x"), ("a/b.py", b"x"))),
    "is a folder and a file": ("duplicate", zipped(("a/b.py", b"x"), ("a", b"x"))),
    "differs from another in capitals": ("case_conflict", zipped(("main.py", b"x"), ("Main.py", b"y"))),
    "differs from another folder in capitals": ("case_conflict", zipped(("a/x.py", b"x"), ("A/y.py", b"y"))),
    "differs from another by a ligature": ("case_conflict", zipped(("\ufb01le.py", b"x"), ("file.py", b"y"))),
    "is encrypted": ("encrypted", by_hand([Made(b"main.py", flags=1)])),
    "is strongly encrypted": ("encrypted", by_hand([Made(b"main.py", flags=0x41)])),
    "has unknown flags": ("unknown_form", by_hand([Made(b"main.py", flags=0x8000)])),
    "is packed in an unknown way": ("unknown_form", by_hand([Made(b"main.py", method=12)])),
    "grows too much": ("bomb", by_hand([Made(b"main.py", b"\0" * (1 << 21))])),
    "grows too much together": ("bomb", zipped(*((f"{n}.py", b"\0" * (1 << 20)) for n in range(5)))),
    "declares less than it holds": ("false_size", by_hand([Made(b"main.py", b"\0" * (1 << 21), size=10)])),
    "declares more than it holds": ("false_size", by_hand([Made(b"main.py", b"x", size=10)])),
    "has another checksum": ("false_checksum", by_hand([Made(b"main.py", b"x", crc=7)])),
    "is not deflated at all": ("broken", by_hand([Made(b"main.py", packed=b"\xff\xff\xff")])),
    "ends too early": ("broken", by_hand([Made(b"main.py", b"hello" * 9, packed=MAIN.stored()[:5])])),
    "has bytes behind its content": ("hidden_bytes", by_hand([Made(b"main.py", packed=Made(b"").stored() + b"evil")])),
    "is called otherwise before its content": ("disagreement", by_hand([Made(b"main.py", local_name=b"evil.py")])),
    "is otherwise sized before its content": ("disagreement", by_hand([Made(b"main.py", local_size=5)])),
    "is otherwise packed before its content": ("disagreement", by_hand([Made(b"main.py", local_method=0)])),
    "is otherwise flagged before its content": ("disagreement", by_hand([Made(b"main.py", local_flags=8)])),
    "is stored with two sizes": ("disagreement", by_hand([Made(b"main.py", b"x", method=0, size=2)])),
    "claims sizes behind it": ("disagreement", by_hand([Made(b"main.py", flags=8)])),
    "has another name in an extra field": ("disagreement", by_hand([Made(b"a.py", extra=QUINE_NAME)])),
    "lies nowhere": ("disagreement", by_hand([Made(b"main.py", offset=3)])),
    "lies within another": ("overlap", by_hand([Made(b"a.py", INNER, 0), Made(b"inner.py", b"inner", offset=34)])),
    "reaches into the directory": ("overlap", by_hand([Made(b"a.py", b"xx", 0, packed_size=2000, size=2000)])),
    "is inserted between two": ("hidden_bytes", by_hand([MAIN, Made(b"a.py", before=INNER)])),
    "is inserted before the first": ("hidden_bytes", by_hand([Made(b"main.py", before=b"#!/bin/sh\n")])),
    "is inserted before the directory": ("broken", by_hand([MAIN], gap=b"evil")),
    "is in the directory twice": ("overlap", by_hand([MAIN, Made(MAIN.name, MAIN.body, offset=0)])),
    "is in the directory twice by two names": ("disagreement", by_hand([MAIN, Made(b"b.py", MAIN.body, offset=0)])),
    "has a false directory": ("broken", by_hand([MAIN], shift=3)),
    "has fewer entries than it says": ("broken", by_hand([MAIN], count=2)),
    "has more entries than it says": ("broken", by_hand([MAIN, Made(b"b.py")], count=1)),
    "is one of several disks": ("broken", by_hand([MAIN], disks=1)),
    "has a comment": ("not_a_zip", by_hand([MAIN], comment=b"hello")),
    "has a second end in its comment": ("broken", by_hand([MAIN], comment=by_hand([Made(b"evil.py")]))),
    "has too many files": ("too_many_files", zipped(*((f"{n}.py", b"") for n in range(21)))),
    "is too large": ("too_large", zipped(("main.py", os.urandom(1 << 20)), method=zipfile.ZIP_STORED)),
    "is zip64": ("zip64", by_hand([Made(b"main.py", size=0xFFFFFFFF)])),
    "is empty": ("empty", by_hand([])),
    "is nothing": ("not_a_zip", b""),
    "is something else": ("not_a_zip", b"\x7fELF" + b"\0" * 100),
    "is cut": ("not_a_zip", zipped(("main.py", b"x"))[:-3]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_zip_is_refused_for_what_it_is_and_leaves_nothing(what: str, tmp_path: Path) -> None:
    reason, archive = HOSTILE[what]
    with pytest.raises(InvalidBundle) as refusal:
        check(archive, limits=SMALL)
    assert refusal.value.reason == reason
    with pytest.raises(InvalidBundle):
        unpack(archive, tmp_path / "bundle", limits=SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_the_entry() -> None:
    with pytest.raises(InvalidBundle, match=r"the entry \.\./evil\.py leads out of the bundle") as refusal:
        check(zipped(("main.py", b"x"), ("../evil.py", b"x")))
    assert refusal.value.where == "../evil.py"
    assert refusal.value.as_dict()["reason"] == "parent"


NAMES = st.text("abcXYZ09_-. é", min_size=1, max_size=12).filter(lambda name: name.strip(". ") != "")
BODIES = st.one_of(
    st.binary(max_size=300), st.integers(0, 200_000).map(lambda n: (b"0123456789abcdef" * (n // 16 + 1))[:n])
)


def _plain(files: dict[str, bytes]) -> bool:
    folded = [name.casefold() for name in files]
    return len(set(folded)) == len(folded)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, BODIES, min_size=1, max_size=6).filter(_plain), st.booleans())
def test_what_the_standard_library_packs_is_unpacked_to_the_same_bytes(files: dict[str, bytes], deflate: bool) -> None:
    archive = zipped(*files.items(), method=zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED)
    found = check(archive, limits=BundleLimits(ratio=2000))
    assert {file.path: b"".join(contents(archive, file)) for file in found.files} == files
    assert found.unpacked_bytes == sum(map(len, files.values()))


GOOD = zipped(("main.py", b"def handler(e, c): ...\n" * 20), ("lib/a.py", b"A = 1\n"))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_zip_with_any_bytes_changed_is_refused_or_says_what_the_standard_library_says(data: Any) -> None:
    changed = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    archive = bytes(changed)
    try:
        found = check(archive, limits=SMALL)
    except InvalidBundle:
        return
    with zipfile.ZipFile(io.BytesIO(archive)) as other:
        assert {file.path: b"".join(contents(archive, file)) for file in found.files} == {
            item.filename: other.read(item) for item in other.infolist() if not item.is_dir()
        }


def test_a_zip_streamed_with_sizes_behind_its_entries_is_taken(tmp_path: Path) -> None:
    class Unseekable(io.RawIOBase):
        def __init__(self) -> None:
            self.written = b""

        def writable(self) -> bool:
            return True

        def write(self, piece: Any) -> int:
            self.written += bytes(piece)
            return len(piece)

    into = Unseekable()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("main.py", b"x" * 1000)
    unpack(into.written, tmp_path / "bundle")
    assert (tmp_path / "bundle" / "main.py").read_bytes() == b"x" * 1000


@pytest.mark.parametrize("stated", [0, 5])
def test_sizes_behind_an_entry_may_be_left_out_before_it(stated: int) -> None:
    body, packed = b"hello", Made(b"main.py", b"hello").stored()
    behind = b"PK\x07\x08" + struct.pack("<3L", zlib.crc32(body), len(packed), len(body))
    streamed = bytearray(by_hand([Made(b"main.py", body, flags=8, after=behind)]))
    struct.pack_into("<3L", streamed, 14, 0, 0, stated)
    assert check(bytes(streamed)).files[0].path == "main.py"
    struct.pack_into("<3L", streamed, 14, 0, 0, 6)
    with pytest.raises(InvalidBundle, match="described in two ways"):
        check(bytes(streamed))


def test_what_is_unpacked_is_read_only_and_executable_only_where_said(tmp_path: Path) -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for name, mode in (("bin/run", 0o755), ("main.py", 0o666), ("empty/", stat.S_IFDIR | 0o777), ("suid", 0o6777)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, b"" if name.endswith("/") else b"content")
    folder = tmp_path / "bundle"
    unpack(into.getvalue(), folder)
    rights = {str(p.relative_to(folder)): stat.S_IMODE(p.stat().st_mode) for p in [folder, *folder.rglob("*")]}
    assert rights == {".": 0o555, "bin": 0o555, "bin/run": 0o555, "main.py": 0o444, "empty": 0o555, "suid": 0o555}
    remove_unpacked(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    unpack(GOOD, tmp_path / "bundle")
    with pytest.raises(ObjectExists):
        unpack(zipped(("other.py", b"x")), tmp_path / "bundle")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle"]
    assert not (tmp_path / "bundle" / "other.py").exists()
    remove_unpacked(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("kind", "handler", "archive"),
    [
        ("python", None, zipped(("main.js", b"x"))),
        ("python", "main.handler", zipped(("other.py", b"x"))),
        ("python", "handler", zipped(("main.py", b"x"))),
        ("python", "a.b.handler", zipped(("a.py", b"x"))),
        ("node", None, zipped(("main.py", b"x"))),
        ("node", "index.handler", zipped(("main.mjs", b"x"))),
        ("bootstrap", None, zipped(("bootstrap", b"x"))),
        ("bootstrap", None, zipped(("bin/bootstrap", b"x"), mode=0o755)),
    ],
)
def test_a_bundle_without_its_entry_point_is_refused(kind: Any, handler: str | None, archive: bytes) -> None:
    with pytest.raises(InvalidBundle) as refusal:
        check(archive, kind=kind, handler=handler)
    assert refusal.value.reason == "no_entry_point"
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("kind", "handler", "archive"),
    [
        ("python", "main.handler", zipped(("main.py", b"x"))),
        ("python", "a.b.handler", zipped(("a/b.py", b"x"))),
        ("python", "a.b.handler", zipped(("a/b/__init__.py", b"x"))),
        ("python", "a/b.handler", zipped(("a/b.py", b"x"))),
        ("node", "index.handler", zipped(("index.mjs", b"x"))),
        ("node", "src/index.handler", zipped(("src/index.js", b"x"))),
        ("bootstrap", "anything at all", zipped(("bootstrap", b"x"), mode=0o755)),
    ],
)
def test_a_bundle_with_its_entry_point_is_taken(kind: Any, handler: str, archive: bytes) -> None:
    assert entry_points(check(archive, kind=kind, handler=handler), kind)
