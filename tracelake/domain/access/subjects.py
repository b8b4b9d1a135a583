"""The roles of users, and what the subject of a user and the name of a role or an organisation may be.

Two that a person takes for the same are the same: they are compared by `compare_key`.
"""

from __future__ import annotations

import unicodedata
from typing import Final, Literal
from uuid import UUID

Role = Literal["reader", "writer", "admin"]
ROLES: Final[tuple[Role, ...]] = ("reader", "writer", "admin")
"""Of a user. Rising: each has the rights of those before it."""
MAX_SUBJECT: Final = 255
MAX_NAME: Final = 128
MAX_EMAIL: Final = 254
SCRIPTS: Final = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE")
"""Their letters resemble each other: a name is written in one of them."""
_LATIN_OF: Final = (
    ("\u0430\u0432\u0433\u0435\u0455\u0456\u0458\u043a\u043c\u043d\u043e\u043f", "abresijkmhon"),  # Cyrillic
    ("\u0440\u0441\u0442\u0443\u0445\u04bb\u0501\u051b\u051d\u050d\u04cf", "pctyxhdqwgl"),  # Cyrillic
    ("\u03b1\u03b2\u03b3\u03b5\u03b6\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4", "abyeznikvopt"),  # Greek
    ("\u03c5\u03c7", "ux"),  # Greek
    ("\u0570\u0578\u057d\u0585\u0581\u0566\u0561", "hnuogqw"),  # Armenian
    ("\u13aa\u13f4\u13df\u13a0\u13ac\u13c0\u13bb\u13ab\u13e6\u13de\u13b7\u13e2", "abcdeghjklmp"),  # Cherokee
    ("\u13a1\u13da\u13a2\u13d9\u13b3\u13a9\u13c3", "rstvwyz"),  # Cherokee
)
LOOK_ALIKE: Final = {
    ord(letter): latin for letters, latins in _LATIN_OF for letter, latin in zip(letters, latins, strict=True)
}
"""Letters of other scripts that look like a Latin one, small or capital, after the confusables of Unicode (UTS 39).
Since a name is written in one script, only whole words in another script can be taken for Latin ones."""

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
    """Equal for texts that differ only in case, in how Unicode writes them, or in letters that look alike."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return folded.translate(LOOK_ALIKE)


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
