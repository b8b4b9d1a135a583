"""Escapes control characters and invisible characters in foreign text.

A task's error, a value of a query or a name in a DAG is written by others. Printed as it is, `ESC` sequences would
recolour, retitle or overwrite a terminal, and bidirectional controls would show text in another order than it has.
"""

from __future__ import annotations

import re
from typing import Final

UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # invisible: hyphen, joiners, fillers
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidirectional controls
    "\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff"  # half of a pair: no encoding has it
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # more format characters
    "]"
)
BLOCK: Final = "\n\t"


def visible(text: str, *, keep: str = BLOCK) -> str:
    r"""The text with every unsafe character as an escape such as `\x1b`; those in `keep` stay as they are."""
    if keep == BLOCK:
        text = text.replace("\r\n", "\n")
    return UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def on_one_line(text: str) -> str:
    """As `visible`, and line breaks and tabs are escapes too: for text that must not look like several lines."""
    return visible(text, keep="")


def visible_json(document: str) -> str:
    """The same JSON, with unsafe characters of its strings as JSON's own escapes: nothing is lost by that."""
    return UNSAFE.sub(lambda found: found[0] if found[0] in BLOCK else _json_escape(found[0]), document)


def _escape(character: str) -> str:
    """As Python's `repr` writes it."""
    return repr(character)[1:-1] if not character.isprintable() else f"\\u{ord(character):04x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
