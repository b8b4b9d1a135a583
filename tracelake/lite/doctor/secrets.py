"""Whether every secret that a setting refers to can be read, and is a value that the setting accepts."""

from __future__ import annotations

import asyncio

from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import SecretReference, Settings, references_in, with_values
from tracelake.wiring import open_secrets


def examine_secrets(settings: Settings) -> list[Finding]:
    try:
        found = references_in(settings)
    except TraceError as wrong:
        return [Finding("secrets", ok=False, found=wrong.message, fix=wrong.hint)]
    return asyncio.run(_fetch_all(settings, found)) if found else []


async def _fetch_all(settings: Settings, found: dict[str, SecretReference]) -> list[Finding]:
    findings, values = list[Finding](), dict[str, str]()
    async with open_secrets(settings) as secrets:
        for path, reference in found.items():
            try:
                values[path] = await secrets.value_of(path, reference)
                with_values(settings, {path: values[path]})
            except TraceError as wrong:
                findings.append(Finding("secrets", ok=False, found=f"{path}: {wrong.message}", fix=wrong.hint))
    fine = f"{len(values)} settings from Secrets Manager in {settings.secrets_manager.region}"
    return findings or [Finding("secrets", ok=True, found=fine)]
