"""What the subject of a user and the name of a role or an organisation may be.

Two that a person takes for the same are the same: they are compared by `compare_key`.
"""

from __future__ import annotations

import unicodedata
from typing import Final
from uuid import UUID

MAX_SUBJECT: Final = 255
MAX_NAME: Final = 128
MAX_EMAIL: Final = 254
SCRIPTS: Final = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE")
"""Their letters resemble each other: a name is written in one of them."""

USER_TOKEN: Final = "trace_pat_"  # noqa: S105 - how each begins
"""How a personal access token begins, so that it is found where it should not be."""
TOKEN_MARK: Final = "\x1f"  # noqa: S105 - a separator
"""Before the id of a personal access token, where a user is named. No subject holds it: it cannot be printed."""


def token_name(token_id: UUID) -> str:
    """How the user of a personal access token is named between services, so that each call looks at the token again."""
    return f"{TOKEN_MARK}{token_id}"


def token_named(name: str) -> UUID | None:
    """The id of the personal access token, if the user is named by one."""
    try:
        return UUID(name.removeprefix(TOKEN_MARK)) if name.startswith(TOKEN_MARK) else None
    except ValueError:
        return None


def compare_key(text: str) -> str:
    """Equal for texts that differ only in case, or in how Unicode writes the same characters."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def why_no_subject(text: str) -> str | None:
    return _why_not(text, MAX_SUBJECT)


def why_no_name(text: str) -> str | None:
    return _why_not(text, MAX_NAME)


def why_no_email(text: str) -> str | None:
    local, at, domain = text.rpartition("@")
    if not (local and at and domain) or any(character.isspace() for character in text):
        return "it is not written as name@domain"
    return _why_not(text, MAX_EMAIL)


def _why_not(text: str, most: int) -> str | None:
    if not 0 < len(text) <= most:
        return f"it has {len(text)} characters; 1 to {most} are accepted"
    if text != text.strip():
        return "it begins or ends with a blank"
    if not text.isprintable() or any(unicodedata.category(character) in {"Mn", "Cf"} for character in text):
        return "it holds a character that is not shown"
    if len(found := _scripts(text)) > 1:
        return f"it mixes letters that look alike: {' and '.join(found)}"
    return None


def _scripts(text: str) -> list[str]:
    names = {unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha()}
    return [script.lower() for script in SCRIPTS if script in names]
