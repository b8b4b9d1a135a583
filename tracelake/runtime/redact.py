"""Redacts secrets of the settings in texts: a library that fails may repeat the address it was given.

Only the second line of defence. Code that knows a secret does not print it; this is for code that does not know.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from tracelake.domain.text.redaction import redact_tokens
from tracelake.settings.secrets.jobs import SHORTEST

INSTEAD: Final = "***"
PASSWORD: Final = re.compile(r"\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|\S+)")

Redact = Callable[[str], str]

RECENT: Final = 64
"""So many values of tasks that have ended are still redacted: their last lines may come late."""


class _Brought:
    """Secrets that claims brought: those of tasks that run, and the last ones of tasks that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._recent: dict[str, None] = {}
        self.redact: Redact = str

    def add(self, values: Sequence[str]) -> None:
        with self._lock:
            before = self._all()
            self._running.update(values)
            self._renew(before)

    def remove(self, values: Sequence[str]) -> None:
        with self._lock:
            before = self._all()
            self._running -= Counter(values)
            for value in values:
                self._recent.pop(value, None)
                self._recent[value] = None
            for value in list(self._recent)[:-RECENT]:
                del self._recent[value]
            self._renew(before)

    def _all(self) -> frozenset[str]:
        return frozenset(self._running) | frozenset(self._recent)

    def _renew(self, before: frozenset[str]) -> None:
        if (now := self._all()) != before:
            self.redact = redact_values(now)


_brought: Final = _Brought()
"""Of the process, as its log is."""


def redactor(settings: BaseModel) -> Redact:
    """Redacts every secret of these settings, every secret part of one, and tokens in a text."""
    fixed = redact_values(_secrets(settings))
    return lambda text: fixed(_brought.redact(text))


@contextmanager
def redacting(values: Sequence[str]) -> Iterator[None]:
    """Every redactor of this process redacts these too: secrets that a claim brought."""
    _brought.add(values)
    try:
        yield
    finally:
        _brought.remove(values)


def redact_values(values: Iterable[str]) -> Redact:
    found = {piece for secret in values for piece in _pieces(secret)}
    spelt = {way for piece in found for way in _spellings(piece)}
    wanted = sorted((piece for piece in spelt if len(piece) >= SHORTEST), key=len, reverse=True)
    if not wanted:
        return redact_tokens
    pattern = re.compile("|".join(map(re.escape, wanted)))
    return lambda text: redact_tokens(pattern.sub(INSTEAD, text))


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item)


def _spellings(piece: str) -> Iterator[str]:
    """As it is, in an address, and as Python repeats it in an error; each also as it is written in JSON."""
    quoted = repr(f"{piece}'\"")[1:-1].removesuffix("\\'\"")  # within a text that holds the other quote too
    for way in (piece, quote(piece), quote(piece, safe=""), quote_plus(piece), repr(piece)[1:-1], quoted):
        yield way
        yield json.dumps(way)[1:-1]


def _pieces(secret: str) -> Iterator[str]:
    """The whole, and each line of it; of addresses, also their secret parts: a password, a key in path or query."""
    yield secret
    yield from map(str.strip, secret.splitlines())
    for found in PASSWORD.findall(secret):
        yield found.strip("'")
    for word in secret.split():
        if "://" in word:
            yield word
            yield from _parts_of_address(word[word.rindex("=", 0, word.index("://")) + 1 :] if _named(word) else word)


def _named(word: str) -> bool:
    """`name=https://...`, as endpoints are given."""
    return "=" in word[: word.index("://")]


def _parts_of_address(address: str) -> Iterator[str]:
    before, _, rest = address.partition("://")
    account, at, _ = rest.rpartition("@")
    if at:
        password = account.partition(":")[2]
        yield from (password, unquote(password))
    if before.startswith(("http", "ws")):  # the last part of a database's address is only its name
        parts = urlsplit(address)
        yield from re.split(r"[/&=?]", f"{parts.path}?{parts.query}")
