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
    for item in entries:
        packed = item.stored()
        crc = zlib.crc32(item.body) if item.crc is None else item.crc
        size = len(item.body) if item.size is None else item.size
        length = len(packed) if item.packed_size is None else item.packed_size
        name = item.name if item.local_name is None else item.local_name
        flags = item.flags if item.local_flags is None else item.local_flags
        method = item.method if item.local_method is None else item.local_method
        told = size if item.local_size is None else item.local_size
        body += item.before
        offset = len(body) if item.offset is None else item.offset
        head = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, flags, method, 0, 33, crc, length, told, len(name), 0)
        body += head + name + packed + item.after
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0x0314, 20, item.flags, item.method, 0, 33, crc, length, size,
            len(item.name), len(item.extra), 0, 0, 0, (item.mode & 0xFFFF) << 16, offset,
        )  # fmt: skip
        directory += item.name + item.extra
    number = len(entries) if count is None else count
    end = struct.pack(
        "<4s4H2LH", b"PK\x05\x06", disks, 0, number, number, len(directory), len(body) + len(gap) + shift, len(comment)
    )
    return body + gap + directory + end + comment
