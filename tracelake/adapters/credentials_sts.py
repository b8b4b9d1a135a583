"""Credentials by STS: AWS's, or that of an S3 server which has one. boto3 is the extra `aws`, imported when needed.

boto3 finds our own keys and STS's address, and botocore signs. The call is sent without a client of boto3, which would
take five times as long as all the rest. Sending blocks, so calls run in a few threads of
their own: an STS that hangs delays no other call.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

from tracelake.adapters.aws.faults import DENIED, EXPIRED, UNKNOWN_KEYS, refusal
from tracelake.errors import CredentialsUnavailable, Forbidden, SettingsError
from tracelake.ports import SessionKeys
from tracelake.runtime.retry import delays
from tracelake.settings import CredentialSettings

THREADS: Final = 8
TRIES: Final = 2
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
OK: Final = 200
FAULT: Final = 500
TOO_LONG: Final = frozenset({"PackedPolicyTooLarge", "MalformedPolicyDocument"})
TRANSIENT: Final = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"})


class StsMinter:
    def __init__(self, settings: CredentialSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sts")

    async def mint(self, policy: str, *, session: str, seconds: int) -> SessionKeys | None:
        if not policy:
            raise Forbidden("credentials without a policy would have all rights of the role", where="/s3")
        request = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._settings.role_arn,
            "RoleSessionName": session,
            "Policy": policy,
            "DurationSeconds": seconds,
        }
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._assume, urlencode(request))

    def _assume(self, body: str) -> SessionKeys:
        sts, pauses = self._sts, delays()
        for left in reversed(range(TRIES)):
            try:
                status, answer = sts.ask(body)
            except sts.faults as away:
                if not left:
                    raise CredentialsUnavailable(f"STS does not answer: {type(away).__name__}") from None
                continue
            if status == OK:
                return _keys(answer)
            code, text = _text(answer, "Code") or f"status {status}", _text(answer, "Message") or ""
            if code in EXPIRED | UNKNOWN_KEYS:  # the next call looks for others: a file of them may have been replaced
                self.__dict__.pop("_sts", None)
            if not left or not (status >= FAULT or code in TRANSIENT):
                raise _refusal(code, text, status)
            time.sleep(next(pauses))
        raise AssertionError

    @cached_property
    def _sts(self) -> _Sts:
        return _sts(self._settings)


@dataclass(frozen=True)
class _Sts:
    url: str
    region: str
    keys: Any
    """botocore's: they renew themselves where they come from a machine's role."""
    http: Any
    signed: Any
    faults: tuple[type[Exception], ...]

    def ask(self, body: str) -> tuple[int, str]:
        headers = self.signed(self.url, body, self.keys.get_frozen_credentials(), self.region)
        answer = self.http.request("POST", self.url, body=body, headers=headers, retries=False)
        return answer.status, answer.data.decode()


def _sts(settings: CredentialSettings) -> _Sts:
    try:
        import boto3
        import urllib3
    except ImportError:
        raise SettingsError(
            "credentials by STS need boto3", where="credentials.role_arn", hint="pip install 'tracelake[aws]'"
        ) from None
    secret = settings.secret_access_key.get_secret_value() if settings.secret_access_key else None
    session = boto3.session.Session(settings.access_key_id, secret, region_name=settings.region)
    url = session.client("sts", endpoint_url=settings.endpoint).meta.endpoint_url
    keys = session.get_credentials()
    if keys is None:
        raise SettingsError("there are no keys for STS", where="credentials.access_key_id")
    timeout = urllib3.Timeout(connect=settings.timeout_seconds, read=settings.timeout_seconds)
    http = urllib3.PoolManager(maxsize=THREADS, timeout=timeout)
    return _Sts(url.rstrip("/") + "/", settings.region, keys, http, _signed, (urllib3.exceptions.HTTPError,))


def _signed(url: str, body: str, keys: Any, region: str) -> dict[str, str]:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    request = AWSRequest(method="POST", url=url, data=body, headers=FORM)
    SigV4Auth(keys, "sts", region).add_auth(request)
    return dict(request.headers.items())


def _keys(answer: str) -> SessionKeys:
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    key, secret, token, until = (_text(answer, name) for name in names)
    if not (key and secret and token and until):
        raise CredentialsUnavailable("STS answered without keys")
    return SessionKeys(key, secret, token, datetime.fromisoformat(until))


def _text(answer: str, name: str) -> str | None:
    try:
        return ET.fromstring(answer).findtext(f".//{{*}}{name}")  # noqa: S314 - STS is ours or AWS's, not a stranger
    except ET.ParseError:
        return None


def _refusal(code: str, text: str, status: int) -> Exception:
    """The text of STS stays here: a task learns its code, and that it may try again."""
    if code in TOO_LONG:
        return Forbidden("the token names more folders than one policy can", where="/s3")
    if code in TRANSIENT:
        return CredentialsUnavailable(f"STS is overloaded: {code}")
    fault = refusal({"Error": {"Code": code, "Message": text}}, status, "sts", "assume_role", {})
    page = "docs/concepts/object_store_credentials.md"
    hint = f"allow the action sts:AssumeRole, and name us in the trust policy; see {page}"
    return CredentialsUnavailable(f"STS refuses us: {code}", hint=hint if code in DENIED else fault.hint)
