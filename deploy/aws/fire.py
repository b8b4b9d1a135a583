"""The function that EventBridge Scheduler calls each minute: `trace scheduler` for two minutes, in place of a process.

It fires slots when they are due, not only when it is called: a call of EventBridge may come a minute late, and the
Dispatcher records a slot that nobody asked for in time as missed. Calls overlap, so one that fails leaves no gap. Each
slot is fired once, however many ask for it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from deploy.aws.setup import Values, Vault
from tracelake.adapters.aws.service import AwsService
from tracelake.errors import SecretsUnavailable, SetupError
from tracelake.scheduler.process import fire_when_due
from tracelake.settings import Settings, load_settings
from tracelake.wire.client import dispatcher_client

SECONDS: Final = 150
"""Longer than the time between two calls, which is two minutes at most."""


def handler(event: object, context: object) -> None:
    """What Lambda calls. The schedule sends nothing that matters."""
    del event, context
    asyncio.run(run(os.environ, SECONDS))


async def run(env: Mapping[str, str], seconds: float) -> None:
    own = await _own_secret(env)
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(env, own, Path(folder))
        async with dispatcher_client(settings) as dispatcher:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await fire_when_due(dispatcher)


async def _own_secret(env: Mapping[str, str]) -> Values:
    """That of the scheduler: the function has its place and its rights."""
    aws = AwsService("secretsmanager", env["AWS_REGION"], env.get("FIRE_ENDPOINT"), unavailable=SecretsUnavailable)
    vault = Vault(aws, env["FIRE_PREFIX"])
    try:
        found = await vault.read("scheduler")
    finally:
        await aws.close()
    if not found:
        hint = "run the setup (docs/how-to/run_on_aws.md)"
        raise SetupError(f"the secret {env['FIRE_PREFIX']}/scheduler has no value", where="FIRE_PREFIX", hint=hint)
    return found


def _settings(env: Mapping[str, str], own: Values, folder: Path) -> Settings:
    ca = folder / "ca.pem"
    ca.write_text(own["tls_ca"], encoding="utf-8")
    given: dict[str, Any] = {
        "TRACE_ENDPOINTS__DISPATCHER_INTERNAL": env["FIRE_DISPATCHER"],
        "TRACE_IDENTITY__SERVICE_TOKEN": own["service_token"],
        "TRACE_TLS__CA": str(ca),
    }
    return load_settings(given, home=folder)
