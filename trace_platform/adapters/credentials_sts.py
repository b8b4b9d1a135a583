"""Credentials by STS: AWS's, or that of an S3 server which has one. boto3 is the extra `aws`, imported when needed.

boto3 blocks, so calls run in a few threads of their own: an STS that hangs holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from trace_platform.errors import CredentialsUnavailable, Forbidden, SettingsError
from trace_platform.ports import SessionKeys
from trace_platform.settings import CredentialSettings

THREADS: Final = 8
TOO_LONG: Final = frozenset({"PackedPolicyTooLarge", "MalformedPolicyDocument"})
HEALS: Final = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"})


class StsMinter:
    def __init__(self, settings: CredentialSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sts")

    async def mint(self, policy: str, *, session: str, seconds: int) -> SessionKeys | None:
        if not policy:
            raise Forbidden("credentials without a policy would have all rights of the role", where="/s3")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._assume, policy, session, seconds)

    def _assume(self, policy: str, session: str, seconds: int) -> SessionKeys:
        client = self._client
        with _failures():
            answer = client.assume_role(
                RoleArn=self._settings.role_arn, RoleSessionName=session, Policy=policy, DurationSeconds=seconds
            )
        keys = answer["Credentials"]
        return SessionKeys(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], keys["Expiration"])

    @cached_property
    def _client(self) -> Any:
        boto3, config = _boto()
        given, secret = self._settings, self._settings.secret_access_key
        return boto3.session.Session().client(
            "sts",
            endpoint_url=given.endpoint,
            region_name=given.region,
            aws_access_key_id=given.access_key_id,
            aws_secret_access_key=secret.get_secret_value() if secret else None,
            config=config.Config(
                connect_timeout=given.timeout_seconds,
                read_timeout=given.timeout_seconds,
                max_pool_connections=THREADS,
                retries={"mode": "standard", "total_max_attempts": 2},
                parameter_validation=False,  # a tenth of the time, for what was made right here
            ),
        )


def _boto() -> tuple[Any, Any]:
    try:
        import boto3
        from botocore import config
    except ImportError:
        raise SettingsError(
            "credentials by STS need boto3", where="credentials.role_arn", hint="pip install 'trace-platform[aws]'"
        ) from None
    return boto3, config


@contextmanager
def _failures() -> Iterator[None]:
    """What STS says of us stays in the log of who runs it: a task is told no more than that it may ask again."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as refusal:
        code = str(refusal.response.get("Error", {}).get("Code", "unknown"))
        if code in TOO_LONG:
            raise Forbidden("the token names more folders than one policy can", where="/s3") from None
        why = "does not keep up" if code in HEALS else "refuses us"
        hint = None if code in HEALS else "the role's trust policy must name our key; see docs/security.md"
        raise CredentialsUnavailable(f"STS {why}: {code}", hint=hint) from None
    except BotoCoreError as away:
        raise CredentialsUnavailable(f"STS does not answer: {type(away).__name__}") from None
