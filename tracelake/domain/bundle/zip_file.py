"""Reads a zip strictly: the central directory and the local headers must agree.

Readers of zips differ: some believe the directory at the end, some the header before each entry, some search for
signatures. A bundle is checked here and unpacked by others, so whatever two readers could see differently is refused:
every byte before the directory belongs to exactly one entry, and both descriptions of an entry agree.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tracelake.errors import InvalidBundle

END: Final = struct.Struct("<4s4H2LH")
CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
LOCAL: Final = struct.Struct("<4s5H3L2H")
EXTRA: Final = struct.Struct("<2H")
END_SIGN, CENTRAL_SIGN, LOCAL_SIGN, DESCRIPTOR_SIGN = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04", b"PK\x07\x08"

STORED: Final = 0
DEFLATED: Final = 8
ENCRYPTED: Final = 0x2041
"""Bits 0, 6 and 13: the content, strongly, or the directory itself."""
TRAILING_SIZES: Final = 0x0008
UTF8: Final = 0x0800
KNOWN_FLAGS: Final = 0x0006 | TRAILING_SIZES | UTF8
"""The first two say how hard the packer tried."""
ZIP64: Final = 0xFFFFFFFF
OTHER_NAME: Final = 0x7075
"""The extra field by which some readers take another name than the one written."""
NEWEST: Final = 45
"""The version of the format, in tenths, that may be needed to read an entry."""
CHUNK: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the directory, found to agree with its local header."""

    raw_name: bytes
    utf8: bool
    method: int
    crc: int
    packed: int
    size: int
    """As declared; `content` refuses any other."""
    mode: int
    """The Unix mode; 0 if there is none."""
    start: int
    """Where the packed bytes begin."""

    @property
    def shown(self) -> str:
        return repr(self.raw_name.decode("utf-8", "backslashreplace"))[1:-1]


def records(archive: bytes, most: int) -> list[Record]:
    """All entries, in the order in which they lie; at most `most`."""
    end = _end(archive)
    count, size, start = end[4], end[5], end[6]
    if count > most:
        raise InvalidBundle(f"the zip has {count} entries; at most {most} are taken", reason="too_many_files")
    if start + size != len(archive) - END.size:
        raise _broken("its directory does not end where the zip's last record begins")
    found = list(_directory(archive, start, count))
    _refuse_gaps(found, start)
    return sorted((item for item, _ in found), key=lambda item: item.start)


def content(archive: bytes, record: Record) -> Iterator[bytes]:
    """What an entry holds, piece by piece; refused as soon as it is more than was declared, or ends as something else.

    Never more than a piece is in memory beyond what the caller keeps.
    """
    crc = size = 0
    for piece in _pieces(archive, record):
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        if size > record.size:
            break
        yield piece
    if size != record.size:
        more = "more" if size > record.size else "less"
        raise invalid_entry(record, f"unpacks to {more} than the {record.size} bytes that it declares", "false_size")
    if crc != record.crc:
        raise invalid_entry(record, "does not have the checksum that it declares", "false_checksum")


def _pieces(archive: bytes, record: Record) -> Iterator[bytes]:
    packed = memoryview(archive)[record.start : record.start + record.packed]
    if record.method == STORED:
        yield from (bytes(packed[at : at + CHUNK]) for at in range(0, len(packed), CHUNK))
        return
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for at in range(0, len(packed), CHUNK):
            waiting = bytes(packed[at : at + CHUNK])
            while waiting and not inflate.eof:
                yield inflate.decompress(waiting, CHUNK)
                waiting = inflate.unconsumed_tail
            if inflate.eof and (inflate.unused_data or at + CHUNK < len(packed)):
                raise invalid_entry(record, "has bytes behind the end of its content", "hidden_bytes")
        while not inflate.eof and (rest := inflate.decompress(b"", CHUNK)):
            yield rest
    except zlib.error as error:
        raise invalid_entry(record, f"cannot be unpacked: {error}", "broken") from None
    if not inflate.eof:
        raise invalid_entry(record, "ends before its content does", "broken")


def _end(archive: bytes) -> tuple[int, ...]:
    """The last record, exactly at the end: with a comment behind it there could be two."""
    at = len(archive) - END.size
    if at < 0 or archive[at : at + 4] != END_SIGN:
        hint = "make it again with `trace udf build`"
        raise InvalidBundle("this is no zip, or it has something behind its end", reason="not_a_zip", hint=hint)
    found = END.unpack_from(archive, at)
    if found[1] or found[2] or found[3] != found[4]:
        raise _broken("it is one part of several")
    if found[7]:
        raise _broken("it has a comment")
    if ZIP64 in found[5:7] or found[4] == 0xFFFF:  # noqa: PLR2004 - zip64's mark in a field of two bytes
        raise InvalidBundle("the zip is in the zip64 format, which a bundle of its size never needs", reason="zip64")
    return found


def _directory(archive: bytes, start: int, count: int) -> Iterator[tuple[Record, tuple[int, int]]]:
    """Each entry, and from where to where it lies."""
    at, last = start, len(archive) - END.size
    for _ in range(count):
        if at + CENTRAL.size > last or archive[at : at + 4] != CENTRAL_SIGN:
            raise _broken("its directory is cut short")
        fields = CENTRAL.unpack_from(archive, at)
        _, _, version, flags, method, _, _, crc, packed, size, name, extra, comment, disk, _, outer, offset = fields
        behind = at + CENTRAL.size + name + extra + comment
        if behind > last or disk:
            raise _broken("its directory is cut short")
        if version > NEWEST:
            raise _broken(f"it is of version {version / 10} of the format")
        raw = archive[at + CENTRAL.size : at + CENTRAL.size + name]
        _check_extra(archive[at + CENTRAL.size + name : behind - comment], raw)
        record = Record(raw, bool(flags & UTF8), method, crc, packed, size, outer >> 16, 0)
        yield _with_local(archive, record, flags, offset, start)
        at = behind
    if at != last:
        raise _broken("its directory has more entries than it announces")


def _with_local(archive: bytes, record: Record, flags: int, offset: int, limit: int) -> tuple[Record, tuple[int, int]]:
    _check_flags(record, flags)
    if offset + LOCAL.size > limit or archive[offset : offset + 4] != LOCAL_SIGN:
        raise invalid_entry(record, "is not where the directory says", "disagreement")
    _, _, local_flags, method, _, _, crc, packed, size, name, extra = LOCAL.unpack_from(archive, offset)
    start = offset + LOCAL.size + name + extra
    raw = archive[offset + LOCAL.size : offset + LOCAL.size + name]
    if ZIP64 in (record.packed, record.size, packed, size):
        raise invalid_entry(record, "is in the zip64 format, which a bundle of its size never needs", "zip64")
    # Where they follow the content, a packer leaves them empty here, all or some.
    empty = 0 if flags & TRAILING_SIZES else None
    pairs = ((crc, record.crc), (packed, record.packed), (size, record.size))
    same = all(value in (known, empty) for value, known in pairs)
    if raw != record.raw_name or method != record.method or local_flags != flags or not same:
        raise invalid_entry(record, "is described in two ways: by the directory and before its content", "disagreement")
    if start + record.packed > limit:
        raise invalid_entry(record, "reaches beyond the place of the entries", "overlap")
    _check_extra(archive[start - extra : start], raw)
    end = start + record.packed
    if flags & TRAILING_SIZES:
        end += _descriptor(archive, record, end, limit)
    return Record(raw, record.utf8, method, record.crc, record.packed, record.size, record.mode, start), (offset, end)


def _descriptor(archive: bytes, record: Record, at: int, limit: int) -> int:
    """How long the sizes behind the content are; they may begin with a signature."""
    sizes = struct.pack("<3L", record.crc, record.packed, record.size)
    for form in (DESCRIPTOR_SIGN + sizes, sizes):
        if at + len(form) <= limit and archive[at : at + len(form)] == form:
            return len(form)
    raise invalid_entry(record, "is described in two ways: by the directory and behind its content", "disagreement")


def _check_flags(record: Record, flags: int) -> None:
    if flags & ENCRYPTED:
        raise invalid_entry(record, "is encrypted", "encrypted", "make the zip without a password")
    if flags & ~KNOWN_FLAGS:
        raise invalid_entry(record, f"has flags that are not known here ({flags:#06x})", "unknown_form")
    if record.method not in (STORED, DEFLATED):
        raise invalid_entry(record, f"is packed by method {record.method}", "unknown_form", "use deflate, or none")
    if record.method == STORED and record.packed != record.size:
        raise invalid_entry(record, "is not packed and yet has two sizes", "disagreement")


def _check_extra(extra: bytes, raw: bytes) -> None:
    """Extra fields are read past, but none may give the entry another name."""
    at = 0
    while at + EXTRA.size <= len(extra):
        kind, size = EXTRA.unpack_from(extra, at)
        at += EXTRA.size
        if kind == OTHER_NAME and extra[at + 5 : at + size] != raw:
            shown = repr(raw.decode("utf-8", "backslashreplace"))[1:-1]
            raise InvalidBundle("the entry has two names", reason="disagreement", where=shown)
        at += size


def _refuse_gaps(found: list[tuple[Record, tuple[int, int]]], limit: int) -> None:
    """Entries lie one after the other from the first byte on: none within another, and nothing between them."""
    at = 0
    for record, (begin, end) in sorted(found, key=lambda item: item[1]):
        if begin < at:
            raise invalid_entry(record, "shares bytes with another entry", "overlap")
        if begin > at:
            raise invalid_entry(record, "has bytes before it that belong to no entry", "hidden_bytes")
        at = end
    if at != limit:
        raise _broken("it has bytes before its directory that belong to no entry")


def invalid_entry(record: Record, what: str, reason: str, hint: str | None = None) -> InvalidBundle:
    return InvalidBundle(f"the entry {record.shown} {what}", reason=reason, where=record.shown, hint=hint)


def _broken(what: str) -> InvalidBundle:
    return InvalidBundle(f"the zip cannot be trusted: {what}", reason="broken")
