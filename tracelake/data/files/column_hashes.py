"""Hashes of the columns of a Parquet file: files with equal hashes of some columns hold the same rows in them.

A hash is of the bytes of the column in each row group, with its name and type. Values, their order and the sizes of row
groups decide these bytes, and no other column does. So rows that are read only in some columns are known to be the same
without reading them.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_COLUMNS: Final = 500
BYTES: Final = 16
Hashes = Mapping[str, str]
"""By column, its name in small letters; empty: not known."""


def column_hashes(body: memoryview, schema: pa.Schema) -> Hashes:
    """Empty for a file with very many columns, or with names whose small letters are not certain."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(schema) > MAX_COLUMNS or not all(field.name.isascii() for field in schema):
        return {}
    found = pq.read_metadata(pa.BufferReader(body))
    leaves, hashes = 0, {}
    for field in schema:
        count = _leaves(field.type)
        hashes[field.name.lower()] = _hash(body, found, field, range(leaves, leaves + count))
        leaves += count
    return hashes if leaves == found.num_columns else {}


def combined(files: Sequence[Hashes]) -> Hashes:
    """Of several files as one, in their order."""
    if len(files) <= 1 or not all(files):
        return files[0] if files and all(files) else {}
    return {name: _digest([json.dumps([file[name] for file in files]).encode()]) for name in files[0]}


def _hash(body: memoryview, found: pq.FileMetaData, field: pa.Field, leaves: range) -> str:
    described = json.dumps([field.name, str(field.type), field.nullable]).encode()
    return _digest([described, *_chunks(body, found, leaves)])


def _chunks(body: memoryview, found: pq.FileMetaData, leaves: range) -> Iterator[bytes | memoryview]:
    for group in map(found.row_group, range(found.num_row_groups)):
        for leaf in leaves:
            chunk = group.column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            yield json.dumps([group.num_rows, chunk.num_values, chunk.total_compressed_size]).encode()
            yield body[start : start + chunk.total_compressed_size]


def _digest(parts: Sequence[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b64encode(digest.digest()[:BYTES]).decode().rstrip("=")


def _leaves(kind: pa.DataType) -> int:
    """How many columns of Parquet a column of Arrow becomes."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(place).type) for place in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaves(kind.value_type)
    return 1
