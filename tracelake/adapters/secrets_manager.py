"""Secrets of AWS Secrets Manager: each is fetched once, in its current version."""

from __future__ import annotations

import json
from typing import Any, Final

from tracelake.adapters.aws.service import AwsRefusal, AwsService
from tracelake.errors import SecretsUnavailable, SettingsError
from tracelake.settings import SecretReference, SecretsManagerSettings

MISSING: Final = "ResourceNotFoundException"
DELETED: Final = "InvalidRequestException"


class SecretsManager:
    """Belongs to one event loop."""

    def __init__(self, settings: SecretsManagerSettings) -> None:
        """Opens nothing yet."""
        self._aws = AwsService("secretsmanager", settings.region, settings.endpoint, unavailable=SecretsUnavailable)
        self._texts: dict[str, str] = {}

    async def value_of(self, path: str, reference: SecretReference) -> str:
        """The value of the setting with that path."""
        if reference.name not in self._texts:
            self._texts[reference.name] = await self._fetch(path, reference.name)
        text = self._texts[reference.name]
        return text if reference.key is None else _text_in(text, path, reference)

    async def close(self) -> None:
        await self._aws.close()

    async def _fetch(self, path: str, name: str) -> str:
        try:
            answer = await self._aws.call("get_secret_value", handled=frozenset({MISSING, DELETED}), SecretId=name)
        except AwsRefusal as refusal:
            raise self._refused(path, name, refusal.code) from None
        if "SecretString" not in answer:
            raise SettingsError(f"the secret {name} holds bytes, not text", where=path, hint="store it as text")
        return str(answer["SecretString"])

    def _refused(self, path: str, name: str, code: str) -> SettingsError:
        if code == DELETED:
            hint = f"aws secretsmanager restore-secret --secret-id {name}; or name another one"
            return SettingsError(f"the secret {name} cannot be read: it is to be deleted", where=path, hint=hint)
        hint = "create it, or correct its name or secrets_manager.region"
        return SettingsError(f"there is no secret {name} with a value in {self._aws.region}", where=path, hint=hint)


def _text_in(text: str, path: str, reference: SecretReference) -> str:
    """Errors repeat nothing of the secret but the key that was looked for."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    value = document.get(reference.key) if isinstance(document, dict) else None
    if not isinstance(value, str):
        what = f"has no text named {reference.key!r}" if isinstance(document, dict) else "is no JSON object"
        hint = "correct the part after `#`, or store a JSON object with that text"
        raise SettingsError(f"the secret {reference.name} {what}", where=path, hint=hint)
    return value
