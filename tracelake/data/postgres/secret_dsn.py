"""A DSN for Python workers: carried inside pickled objects, never as an option, and never shown."""

from __future__ import annotations

from urllib.parse import quote, unquote

from tracelake.errors import SettingsError


class SecretDsn:
    """Plans, logs and stack traces show an object's repr: this one is empty."""

    __slots__ = ("_dsn", "_password")

    def __init__(self, dsn: str) -> None:
        # Not imported above: Python workers, which only unpickle one, do not need it.
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            self._password = str(conninfo_to_dict(dsn).get("password") or "")
        except ProgrammingError:  # its message repeats the DSN
            raise SettingsError("the data database's DSN cannot be read", where="data.dsn") from None
        self._dsn = dsn

    def reveal(self) -> str:
        return self._dsn

    def redact(self, text: str) -> str:
        """Remove the DSN and its password, in any encoding, from the text."""
        forms = {self._dsn, self._password, quote(self._password, safe=""), unquote(self._password)} - {""}
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, "***")
        return text

    def __repr__(self) -> str:
        return "SecretDsn(***)"

    def __getstate__(self) -> tuple[str, str]:
        return (self._dsn, self._password)

    def __setstate__(self, state: tuple[str, str]) -> None:
        self._dsn, self._password = state
