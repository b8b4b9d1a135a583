"""Calls a running Trace through its Gateway, as any user does. Its errors are raised here."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from tracelake.cli.options import settings_of
from tracelake.domain.error_codes import KINDS
from tracelake.domain.task import Backoff, retry_delay
from tracelake.errors import (
    Busy,
    InvalidDag,
    InvalidSql,
    NoConnection,
    Problem,
    Refused,
    ServiceUnavailable,
    SettingsError,
    SetupError,
    TooManyConnections,
    TraceError,
    Unavailable,
)
from tracelake.runtime.tls import client_context
from tracelake.settings import Settings
from tracelake.wire.calls.call import Call
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.internal.queries import ARROW
from tracelake.wire.message import Message

A = TypeVar("A", bound=Message)
SECONDS = 60.0
NETWORK_SECONDS = 30.0
"""Added to the time that the Gateway waits for an answer."""
NOT_STARTED = (Busy, TooManyConnections, NoConnection)
"""The call was not started, so any call may be repeated."""
RETRY_SECONDS, LONGEST_PAUSE = 30.0, 8.0
_random = random.Random()  # noqa: S311 - spreads retries; protects nothing
CLIENT, GATEWAY = "TRACE_CLIENT__", "TRACE_CLIENT__GATEWAY_URL"


@dataclass(frozen=True)
class Remote:
    """An open connection to a Gateway."""

    http: httpx.Client

    def call(
        self,
        call: str,
        answer: type[A],
        *,
        query: Mapping[str, object] | None = None,
        body: Message | None = None,
        repeatable: bool = False,
        **path: object,
    ) -> A:
        """Retries a call that was not started, with backoff; `repeatable`: also one that may have been done."""
        known, until, tries = CALLS[call], time.monotonic() + RETRY_SECONDS, 0
        while True:
            try:
                return self._call_once(known, answer, query, body, path)
            except Unavailable as error:
                tries += 1
                pause = retry_delay(tries, Backoff(2 * error.retry_after, LONGEST_PAUSE), _random.random())
                is_safe = isinstance(error, NOT_STARTED) or (repeatable and error.where != str(self.http.base_url))
                if not is_safe or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)

    def _call_once(
        self,
        known: Call,
        answer: type[A],
        query: Mapping[str, object] | None,
        body: Message | None,
        path: Mapping[str, object],
    ) -> A:
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        response = self._request(
            known.method,
            _path(known, path),
            params=params,
            content=b"" if body is None else msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=known.seconds + NETWORK_SECONDS,
        )
        return _decode(response, answer)

    def send(self, call: str, answer: type[A], content: Iterable[bytes], size: int, **path: object) -> A:
        """Makes a call whose body is a stream of bytes."""
        known = CALLS[call]
        headers = {"content-type": known.takes_bytes or "", "content-length": str(size)}
        options: dict[str, Any] = {"content": content, "headers": headers, "timeout": None}
        return _decode(self._request(known.method, _path(known, path), **options), answer)

    def query(self, request: Message, *, arrow: bool) -> bytes:
        """Runs a query; the result is JSON or an Arrow stream. There is no timeout but the service's."""
        headers = {"content-type": "application/json", "accept": ARROW if arrow else "application/json"}
        body = msgspec.json.encode(request)
        return self._request("POST", "/v1/query", content=body, headers=headers, timeout=None).content

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self.http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise _unavailable(error, self.http) from None
        if response.is_error:
            raise refusal_in(response)
        return response


def next_page(following: int | None, current: int) -> int | None:
    """Where the next page begins; a Gateway that does not advance is refused, instead of being called for ever."""
    if following is not None and following <= current:
        raise Refused(f"the page after {current} begins at {following}", hint="the Gateway may have another version")
    return following


def _path(call: Call, parts: Mapping[str, object]) -> str:
    """Quotes each part, so that a name cannot change the path."""
    return "/v1" + call.path.format(**{name: quote(str(value), safe="") for name, value in parts.items()})


def _unavailable(error: httpx.HTTPError, http: httpx.Client) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"the Gateway does not answer: {error or type(error).__name__}",
        where=str(http.base_url),
        hint="`trace status` shows whether it runs; `trace up` starts it",
    )


@contextmanager
def remote(home: Path | None) -> Iterator[Remote]:
    """The system in the home that `--home` names; else the one that the settings name (`client.*`)."""
    settings = _settings_for(home)
    with _open(_from_settings(settings) if settings.client.gateway_url else _from_home(settings)) as opened:
        yield opened


@contextmanager
def remote_at_home(settings: Settings, token: str) -> Iterator[Remote]:
    """The system that runs in the home, whatever the settings name, with this token."""
    with _open(replace(_from_home(settings), token=token)) as opened:
        yield opened


@contextmanager
def _open(target: _Target) -> Iterator[Remote]:
    tls = client_context(target.ca)
    headers = {"authorization": f"Bearer {target.token}"}
    # A system on this machine is never behind a proxy.
    with httpx.Client(
        base_url=target.url, headers=headers, verify=tls, timeout=SECONDS, trust_env=not target.local
    ) as http:
        yield Remote(http)


def _settings_for(home: Path | None) -> Settings:
    """With `--home`, a Gateway that the environment names is ignored, and its CA and token with it."""
    env: Mapping[str, str] = os.environ
    if home is not None and GATEWAY in env:
        env = {name: value for name, value in env.items() if not name.startswith(CLIENT)}
    return settings_of(home, env)


@dataclass(frozen=True)
class _Target:
    url: str
    ca: Path | None
    token: str
    local: bool


def _from_settings(settings: Settings) -> _Target:
    client = settings.client
    if client.token is None:
        raise SettingsError(
            "client.gateway_url is set, but client.token is not",
            where="client.token",
            hint="set TRACE_CLIENT__TOKEN to a token of your identity provider, or of `trace token`",
        )
    return _Target(str(client.gateway_url), client.ca, client.token.get_secret_value(), local=False)


def _from_home(settings: Settings) -> _Target:
    ready = settings.home / "run" / "ready.json"
    try:
        document = json.loads(ready.read_text())
        url, ca, token = document["endpoints"]["gateway"], Path(document["ca_file"]), document["user_token"]
    except FileNotFoundError:
        raise SetupError(
            f"no Trace runs in {settings.home}",
            where=str(ready),
            hint="`trace up` starts one; or name another: --home, or TRACE_CLIENT__GATEWAY_URL",
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(
            "the address of the Gateway is missing",
            where=str(ready),
            hint="was it started without one (`trace up --without gateway`)?",
        ) from None
    override = settings.client.token
    return _Target(url, ca, override.get_secret_value() if override else token, local=True)


def refusal_in(response: httpx.Response) -> TraceError:
    """The error that the Gateway sent, with its place and hint."""
    try:
        document: dict[str, Any] = response.json()["error"]
        if document["code"] == InvalidDag.code:
            warnings = [Problem(**warning) for warning in document.get("warnings", ())]
            return InvalidDag([Problem(**problem) for problem in document["problems"]], warnings)
        if document["code"] == InvalidSql.code:
            return _invalid_sql(document)
        refusal = KINDS.get(document["code"], Refused)(
            document["message"], where=document["where"], hint=document["hint"]
        )
    except (ValueError, KeyError, TypeError):
        return ServiceUnavailable(f"the Gateway answered {response.status_code}, without an error document")
    if isinstance(refusal, Unavailable) and (seconds := response.headers.get("retry-after", "")).isdecimal():
        refusal.retry_after = int(seconds)
    return refusal


def _invalid_sql(document: dict[str, Any]) -> InvalidSql:
    """Its place is a line and a column."""
    refusal = InvalidSql(document["message"], hint=document["hint"])
    refusal.where = document["where"]
    return refusal


def _decode(response: httpx.Response, answer: type[A]) -> A:
    try:
        return msgspec.json.decode(response.content, type=answer)
    except msgspec.DecodeError as error:
        raise Refused(
            f"the Gateway's answer cannot be decoded: {error}",
            hint="the Gateway and this command line may have different versions",
        ) from None
