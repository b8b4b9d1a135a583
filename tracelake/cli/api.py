"""How verbs reach a running Trace: through its Gateway, as any user would. A refusal there is a refusal here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from tracelake import errors
from tracelake.cli.options import settings_of
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
from tracelake.wire.call import Call
from tracelake.wire.message import Message
from tracelake.wire.query_messages import ARROW
from tracelake.wire.user_calls import CALLS

A = TypeVar("A", bound=Message)
SECONDS = 60.0
BESIDE_SECONDS = 30.0
"""Above what the Gateway waits for an answer: the way there and back."""
NOT_BEGUN = (Busy, TooManyConnections, NoConnection)
"""Refusals of calls of which nothing was done: any of them may be made again."""
AGAIN_SECONDS, LONGEST_PAUSE = 30.0, 8.0
CLIENT, GATEWAY = "TRACE_CLIENT__", "TRACE_CLIENT__GATEWAY_URL"


@dataclass(frozen=True)
class Remote:
    """An open connection to a Gateway."""

    http: httpx.Client

    def ask(
        self,
        call: str,
        answer: type[A],
        *,
        query: Mapping[str, object] | None = None,
        body: Message | None = None,
        again: bool = False,
        **path: object,
    ) -> A:
        """What was refused for lack of room is asked again for a while; `again`: also what may have been done."""
        known, until, tries = CALLS[call], time.monotonic() + AGAIN_SECONDS, 0
        while True:
            try:
                return self._once(known, answer, query, body, path)
            except Unavailable as away:
                pause = min(away.retry_after * 2**tries, LONGEST_PAUSE)
                is_safe = isinstance(away, NOT_BEGUN) or (again and away.where != str(self.http.base_url))
                if not is_safe or time.monotonic() + pause > until:
                    raise
            tries += 1
            time.sleep(pause)

    def _once(
        self,
        known: Call,
        answer: type[A],
        query: Mapping[str, object] | None,
        body: Message | None,
        path: Mapping[str, object],
    ) -> A:
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            said = self.http.request(
                known.method,
                _path(known, path),
                params=given,
                content=content,
                headers={"content-type": "application/json"},
                timeout=known.seconds + BESIDE_SECONDS,
            )
        except httpx.HTTPError as away:
            raise _away(away, self.http) from None
        if said.is_error:
            raise refusal_in(said)
        return _decoded(said, answer)

    def send(self, call: str, answer: type[A], content: Iterable[bytes], size: int, **path: object) -> A:
        """A call whose body is bytes and not a message; they are sent as they come."""
        known = CALLS[call]
        headers = {"content-type": known.takes_bytes or "", "content-length": str(size)}
        try:
            said = self.http.request(known.method, _path(known, path), content=content, headers=headers, timeout=None)
        except httpx.HTTPError as away:
            raise _away(away, self.http) from None
        if said.is_error:
            raise refusal_in(said)
        return _decoded(said, answer)

    def query(self, request: Message, *, arrow: bool) -> bytes:
        """The answer to a question, as JSON or as an Arrow stream. It may take as long as the service allows."""
        headers = {"content-type": "application/json", "accept": ARROW if arrow else "application/json"}
        try:
            said = self.http.post("/v1/query", content=msgspec.json.encode(request), headers=headers, timeout=None)
        except httpx.HTTPError as away:
            raise _away(away, self.http) from None
        if said.is_error:
            raise refusal_in(said)
        return said.content


def _path(call: Call, parts: Mapping[str, object]) -> str:
    """With each part quoted: a name that was typed or answered is never more than a name."""
    return "/v1" + call.path.format(**{name: quote(str(value), safe="") for name, value in parts.items()})


def _away(away: httpx.HTTPError, http: httpx.Client) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"the Gateway does not answer: {away or type(away).__name__}",
        where=str(http.base_url),
        hint="`trace status` shows whether it runs; `trace up` starts it",
    )


@contextmanager
def remote(home: Path | None) -> Iterator[Remote]:
    """The system in the home that `--home` names; else the one that the settings name (`client.*`), if they do."""
    settings = _settings_for(home)
    with _open(_from_settings(settings) if settings.client.gateway_url else _from_home(settings)) as opened:
        yield opened


@contextmanager
def at_home(settings: Settings, token: str) -> Iterator[Remote]:
    """The system that runs in the home, whatever the settings name, for who holds this token."""
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
    """A Gateway that the environment names is another system than the home's, and so are its CA and token."""
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
        told = json.loads(ready.read_text())
        url, ca, token = told["endpoints"]["gateway"], Path(told["ca_file"]), told["user_token"]
    except FileNotFoundError:
        raise SetupError(
            f"no Trace runs in {settings.home}",
            where=str(ready),
            hint="`trace up` starts one; or name another: --home, or TRACE_CLIENT__GATEWAY_URL",
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(
            "the running system does not say where its Gateway is",
            where=str(ready),
            hint="was it started without one (`trace up --without gateway`)?",
        ) from None
    given = settings.client.token
    return _Target(url, ca, given.get_secret_value() if given else token, local=True)


def refusal_in(said: httpx.Response) -> TraceError:
    """The refusal as the Gateway meant it, with its place and hint."""
    try:
        told: dict[str, Any] = said.json()["error"]
        if told["code"] == InvalidDag.code:
            warnings = [Problem(**warning) for warning in told.get("warnings", ())]
            return InvalidDag([Problem(**problem) for problem in told["problems"]], warnings)
        if told["code"] == InvalidSql.code:
            return _invalid_sql(told)
        refusal = KINDS.get(told["code"], Refused)(told["message"], where=told["where"], hint=told["hint"])
    except (ValueError, KeyError, TypeError):
        return ServiceUnavailable(f"the Gateway answered {said.status_code}, and not as a Gateway would")
    if isinstance(refusal, Unavailable) and (again := said.headers.get("retry-after", "")).isdecimal():
        refusal.retry_after = int(again)
    return refusal


def _invalid_sql(told: dict[str, Any]) -> InvalidSql:
    """Its place is a line and a column."""
    refusal = InvalidSql(told["message"], hint=told["hint"])
    refusal.where = told["where"]
    return refusal


KINDS: Mapping[str, type[TraceError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TraceError) and kind is not InvalidDag
}


def _decoded(said: httpx.Response, answer: type[A]) -> A:
    try:
        return msgspec.json.decode(said.content, type=answer)
    except msgspec.DecodeError as wrong:
        raise Refused(
            f"the Gateway's answer is not understood: {wrong}",
            hint="is it of another version than this command line?",
        ) from None
