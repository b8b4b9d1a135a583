"""Secrets that sign the calls to webhook sources: a DAG has their names, and only the Dispatcher has their values."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr

from tracelake.settings.secrets.references import is_reference

SHORTEST: Final = 16
"""A shorter one could be guessed."""


def _can_sign(given: SecretStr) -> SecretStr:
    if is_reference(given):
        return given
    secrets = split_secrets(given.get_secret_value())
    if not secrets or any(len(secret) < SHORTEST for secret in secrets):
        raise ValueError(
            f"a secret of a webhook has {SHORTEST} characters or more; several, while it is changed, are separated by"
            " blanks"
        )
    return given


HookSecret = Annotated[SecretStr, AfterValidator(_can_sign)]


def split_secrets(text: str) -> tuple[str, ...]:
    """All that are accepted now: while a sender changes its secret, the new and the old one."""
    return tuple(text.split())


def hook_variable(name: str) -> str:
    """What a secret that a DAG calls so is set by."""
    return f"TRACE_HOOK_SECRETS__{name.upper()}"
