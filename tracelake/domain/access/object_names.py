"""Names in the object store: `s3://bucket/folder/` and `s3://bucket/folder/name`, read once and compared by segment.

A name has one spelling. What could be read in two ways (an empty segment, `.`, `..`, a character outside the plain
ones) is refused, so a folder contains only what is inside of it: `a/b/` does not hold `a/bc`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from tracelake.errors import InvalidRequest

SCHEME: Final = "s3://"
BUCKET: Final = re.compile(r"(?=.{3,63}\Z)[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*(?<!-)")
SEGMENT: Final = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9_.=+-]{1,255}")
MAX_KEY: Final = 1024


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """Everything below a prefix that ends in `/`; a bucket alone is not one."""

    bucket: str
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.endswith("/"):
            raise _refusal(text, "a folder ends in '/'")
        return cls(*_parts(text, text[:-1]))

    @property
    def key(self) -> str:
        return "/".join(self.segments) + "/"

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def holds(self, other: ObjectName | Folder) -> bool:
        depth = len(self.segments)
        same = (self.bucket, self.segments) == (other.bucket, other.segments[:depth])
        return same and len(other.segments) > depth

    def folder(self, *names: str) -> Folder:
        if all(map(SEGMENT.fullmatch, names)) and len(self.key) + sum(map(len, names)) + len(names) <= MAX_KEY:
            return Folder(self.bucket, self.segments + names)
        return Folder.parse(f"{self}{'/'.join(names)}/")  # which raises if a name is invalid

    def object(self, name: str) -> ObjectName:
        return ObjectName.parse(f"{self}{name}")


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """One object."""

    bucket: str
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(*_parts(text, text))

    @property
    def key(self) -> str:
        return "/".join(self.segments)

    @property
    def name(self) -> str:
        return self.segments[-1]

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@lru_cache(maxsize=8192)  # a token's prefixes are read when it is made and again when it is judged
def _parts(text: str, path: str) -> tuple[str, tuple[str, ...]]:
    if not path.startswith(SCHEME):
        raise _refusal(text, f"it begins with {SCHEME}")
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    if not BUCKET.fullmatch(bucket):
        raise _refusal(text, "its bucket is 3 to 63 of a-z, 0-9, '-' and '.'")
    segments = tuple(key.split("/"))
    if not all(SEGMENT.fullmatch(segment) for segment in segments) or len(key) > MAX_KEY:
        raise _refusal(text, "between slashes stand letters, digits and _.=+-, and never '.', '..' or nothing")
    return bucket, segments


def _refusal(text: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{text[:200]!r} is no name in the object store: {rule}", where="/location")
