"""Secrets by reference: `aws-secret:NAME` is one of Secrets Manager, `aws-secret:NAME#KEY` a text in its JSON object.

A reference is no secret: `trace.toml` may have it, and people are shown it. The process that uses the value fetches it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic import SecretStr

SCHEME: Final = "aws-secret:"
FORM: Final = re.compile(r"aws-secret:(?P<name>[A-Za-z0-9/_+=.@:-]{1,2048})(?:#(?P<key>[^#\s]{1,256}))?")


@dataclass(frozen=True)
class SecretReference:
    name: str
    """Or its ARN."""
    key: str | None = None


def is_reference(value: Any) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and text.startswith(SCHEME)


def parse_reference(text: str) -> SecretReference | None:
    """None: it is not well formed."""
    found = FORM.fullmatch(text)
    return SecretReference(found["name"], found["key"]) if found else None
