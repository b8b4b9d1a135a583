"""The token of this process, from its settings: read again when its file changes, so that it is rotated at run time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import structlog

from tracelake.domain.access.service_tokens import TokenListener, derive_token, prove_user
from tracelake.errors import SettingsError
from tracelake.settings import IdentitySettings
from tracelake.wire.service.headers import ServiceUser

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
"""How often a process looks whether the file of its token has changed."""


class ServiceToken:
    def __init__(self, identity: IdentitySettings) -> None:
        self._file = identity.service_token_file
        self._token = identity.service_token.get_secret_value() if identity.service_token else ""
        self._derived: dict[TokenListener, str] = {}
        self._looked = 0.0
        if self._file is not None:
            self._token = _read(self._file)
            self._looked = time.monotonic()
        elif not self._token:
            missing = "identity.service_token"
            hint = f"set it, or {missing}_file; `trace up` does, and `trace service-token create` makes a token"
            raise SettingsError(f"{missing} is not set", where=missing, hint=hint)

    def for_listener(self, listener: TokenListener) -> str:
        """What this process sends there."""
        self._look()
        found = self._derived.get(listener)
        if found is None:
            found = self._derived[listener] = derive_token(self._token, listener)
        return found

    def user_at(self, listener: TokenListener, subject: str) -> ServiceUser:
        """The user of a call, as the Gateway names him to this listener."""
        self._look()
        proof = "" if listener == "dispatcher" else prove_user(self._token, subject, listener, time.time())
        return ServiceUser(subject, proof)

    def _look(self) -> None:
        """A file that cannot be read is ignored until it can be: the token that was read is still used."""
        if self._file is None or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            found = _read(self._file)
        except SettingsError as wrong:
            log.warning("the service's token was not read again", **wrong.as_dict())
            return
        if found != self._token:
            log.info("the service's token was replaced", file=str(self._file))
            self._token = found
            self._derived.clear()


def _read(file: Path) -> str:
    where = "identity.service_token_file"
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"the service's token cannot be read from {file}: {wrong}", where=where) from None
    if not token:
        raise SettingsError(f"{file} holds no token", where=where)
    return token
