"""Secrets of jobs: a DAG has their names, and only a trusted worker has their values."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr

SHORTEST: Final = 6
"""A shorter text would be found in many other words, so that it could not be redacted in a log."""


def _can_be_redacted(given: SecretStr) -> SecretStr:
    if len(given.get_secret_value().strip()) < SHORTEST:
        raise ValueError(f"a secret has {SHORTEST} characters or more; leave the setting out if there is none")
    return given


JobSecret = Annotated[SecretStr, AfterValidator(_can_be_redacted)]


def variable_of(name: str) -> str:
    """What a secret that a DAG calls so is set by: capitals or not, it is the same one."""
    return f"TRACE_SECRETS__{name.upper()}"
