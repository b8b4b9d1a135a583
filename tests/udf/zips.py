"""Real zips, good and hostile: made by the standard library where it can, by hand where it refuses to."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

LATEST = (1980, 1, 1, 0, 0, 0)


def zipped(*files: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An honest zip of these files, or one with the names that it was told."""
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", method) as archive:
        for name, body in files:
            entry = zipfile.ZipInfo(name, LATEST)
            entry.external_attr = mode << 16
            entry.compress_type = method
            archive.writestr(entry, body)
    return into.getvalue()


@dataclass
class Made:
    """An entry whose every field can lie. What is None is as it should be."""

    name: bytes
    body: bytes = b"x"
    method: int = 8
    flags: int = 0
    mode: int = stat.S_IFREG | 0o644
    size: int | None = None
    crc: int | None = None
    packed: bytes | None = None
    packed_size: int | None = None
    local_name: bytes | None = None
    local_size: int | None = None
    local_flags: int | None = None
    local_method: int | None = None
    offset: int | None = None
    extra: bytes = b""
    before: bytes = b""
    """Bytes that belong to no entry."""
    after: bytes = b""

    def stored(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method == 0:
            return self.body
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(self.body) + deflate.flush()


def by_hand(
    entries: Sequence[Made],
    *,
    comment: bytes = b"",
    count: int | None = None,
    gap: bytes = b"",
    shift: int = 0,
    disks: int = 0,
) -> bytes:
    body, directory = b"", b""
    for one in entries:
        packed = one.stored()
        crc = zlib.crc32(one.body) if one.crc is None else one.crc
        size = len(one.body) if one.size is None else one.size
        length = len(packed) if one.packed_size is None else one.packed_size
        name = one.name if one.local_name is None else one.local_name
        flags = one.flags if one.local_flags is None else one.local_flags
        method = one.method if one.local_method is None else one.local_method
        told = size if one.local_size is None else one.local_size
        body += one.before
        offset = len(body) if one.offset is None else one.offset
        head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, flags, method, 0, 33, crc, length, told, len(name), 0)
        body += head + name + packed + one.after
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0x0314, 20, one.flags, one.method, 0, 33, crc, length, size,
            len(one.name), len(one.extra), 0, 0, 0, (one.mode & 0xFFFF) << 16, offset,
        )  # fmt: skip
        directory += one.name + one.extra
    number = len(entries) if count is None else count
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", disks, 0, number, number, len(directory), len(body) + len(gap) + shift, len(comment)
    )
    return body + gap + directory + end + comment
