"""Secrets in moto's Secrets Manager."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from tracelake.adapters.aws.service import AwsService
from tracelake.errors import SecretsUnavailable


async def create_secret(url: str, **content: Any) -> str:
    """Its name, which no other test has; content: `SecretString` or `SecretBinary`."""
    name = f"trace/{secrets.token_hex(6)}"
    await _call(url, "create_secret", Name=name, **content)
    return name


def created_secret(url: str, text: str) -> str:
    """The same, outside of an event loop."""
    return asyncio.run(create_secret(url, SecretString=text))


async def delete_secret(url: str, name: str) -> None:
    await _call(url, "delete_secret", SecretId=name)


async def _call(url: str, operation: str, **parameters: Any) -> None:
    aws = AwsService("secretsmanager", "us-east-1", url, unavailable=SecretsUnavailable)
    try:
        await aws.call(operation, **parameters)
    finally:
        await aws.close()
