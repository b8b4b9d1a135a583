"""`python -m deploy.aws.setup`: databases, roles, tokens and certificates of a deployment on AWS.

Runs in the network of the deployment, before the first start and before each new version. Everything in it can be
repeated: what is there stays, but for certificates that end soon. Passwords, tokens and keys are made here, and leave
this process only as the secrets of the services that have them; nothing of them is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from deploy.aws.network import SERVICES
from tracelake.adapters.aws.service import AwsService
from tracelake.domain.access.service_tokens import new_service_token
from tracelake.errors import SecretsUnavailable, SettingsError, TraceError
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.home import Home, ensure_issuer_key, ensure_secret_key, public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings, WorkerSettings
from tracelake.store.first_start import FIRST_ADMIN, LocalToken, ensure_first_rows
from tracelake.store.migrate import migrate
from tracelake.store.roles import ROLES, Instance, ensure_databases, ensure_roles

LISTENING: Final = ("dispatcher", "query", "delivery", "gateway")
ADMIN_SECONDS: Final = 24 * 3600
ROLE_OF: Final = {"worker": "worker", "sink": "worker", "query": "query", "delivery": "delivery"}
"""Each process by its role in the data database."""
KEPT: Final = ("keys/issuer.pem", "keys/secrets.key", "tls/ca.pem", "tls/ca-key.pem")
"""Files of the home that are the same at every setup."""


@dataclass(frozen=True)
class Place:
    prefix: str
    state: str
    """The owner's DSN, of the database `postgres`."""
    data: str
    sslmode: str = "require"


@dataclass
class Vault:
    """The secrets of the services, as JSON objects."""

    aws: AwsService
    prefix: str
    found: dict[str, dict[str, str]] = field(default_factory=dict)

    async def read(self, name: str) -> dict[str, str]:
        return await self._value(f"{self.prefix}/{name}")

    async def master(self, arn: str) -> tuple[str, str]:
        value = await self._value(arn)
        return value["username"], value["password"]

    async def write(self, name: str, value: Mapping[str, str]) -> None:
        text = json.dumps(value)
        await self.aws.call("put_secret_value", SecretId=f"{self.prefix}/{name}", SecretString=text)

    async def _value(self, name: str) -> dict[str, str]:
        """A secret that CloudFormation has made has no value yet."""
        try:
            answer = await self.aws.call("get_secret_value", SecretId=name)
        except TraceError as missing:
            if "ResourceNotFoundException" not in str(missing):
                raise
            return {}
        value: dict[str, str] = json.loads(answer["SecretString"])
        return value
