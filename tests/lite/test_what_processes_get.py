"""What `trace up` gives a process, and so what somebody has who takes it over: each secret reaches its own only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import SecretStr

from tracelake.domain.access.seal import new_key
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import load_settings

KEY: Final = new_key()
SET: Final = {
    "TRACE_SECRETS__API_KEY": "secret-of-jobs",
    "TRACE_HOOK_SECRETS__SHOP": "secret-of-webhooks",
    "TRACE_UDF__INVOKE_TOKEN": "secret-of-the-runner",
    "TRACE_DISPATCHER__SECRET_KEYS": KEY,
    "TRACE_OBJECTS__BACKEND": "s3",
    "TRACE_OBJECTS__ENDPOINT": "https://store.example.com",
    "TRACE_OBJECTS__ACCESS_KEY_ID": "key-of-the-store",
    "TRACE_OBJECTS__SECRET_ACCESS_KEY": "secret-of-the-store",
    "TRACE_CREDENTIALS__ACCESS_KEY_ID": "key-of-sts",
    "TRACE_CREDENTIALS__SECRET_ACCESS_KEY": "secret-of-sts",
    "TRACE_CREDENTIALS__ROLE_ARN": "arn:aws:iam::000000000000:role/tasks",
    "TRACE_CLIENT__TOKEN": "secret-of-a-person",
    "TRACE_SPARK__REMOTE_TOKEN": "secret-of-spark",
}
DSNS: Final = {name: f"postgresql://{name}:password-of-{name}@h/d" for name in Dsns.__dataclass_fields__}
REACHES: Final = {
    "password-of-state": "dispatcher",
    "password-of-data": "worker sink",
    "password-of-query": "query",
    "password-of-delivery": "delivery",
    "password-of-queue": "dispatcher worker sink runner",
    "secret-of-jobs": "worker",
    "secret-of-webhooks": "dispatcher",
    "secret-of-the-runner": "dispatcher runner",
    KEY: "dispatcher",
    "key-of-the-store": "dispatcher query worker sink",
    "secret-of-the-store": "dispatcher query worker sink",
    "key-of-sts": "dispatcher",
    "secret-of-sts": "dispatcher",
    "secret-of-a-person": "",
    "secret-of-spark": "query worker sink",
    "public key of the issuer": "gateway",
    **{f"/tokens-of-{name}": name for name in PROCESSES if name != "dispatcher"},
}


def test_each_secret_reaches_exactly_the_processes_that_need_it(tmp_path: Path) -> None:
    files = TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    made = children(
        PROCESSES,
        load_settings(SET, home=tmp_path),
        ports=Ports(*range(9)),
        tls=files,
        dsns=Dsns(**DSNS),
        token_file=lambda name: tmp_path / f"tokens-of-{name}",
        issuer="public key of the issuer",
    )
    given = {child.name: f"{child.launch().stdin!r} {child.launch().argv} {child.launch().env}" for child in made}
    for secret, names in REACHES.items():
        assert {name for name, text in given.items() if secret in text} == set(names.split()), secret


def test_every_secret_of_that_test_is_one_of_the_settings(tmp_path: Path) -> None:
    """Else a setting that is not read would be held by nobody for the wrong reason."""
    settings = load_settings(SET, home=tmp_path)
    assert isinstance(settings.client.token, SecretStr)
    assert settings.client.token.get_secret_value() == "secret-of-a-person"
    assert {"api_key"} == set(settings.secrets)
    assert {"shop"} == set(settings.hook_secrets)
