"""The processes that `trace up` starts, each with only the settings that it needs."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from tracelake.lite.child import Child
from tracelake.lite.launch import Launch
from tracelake.lite.network_ports import Ports
from tracelake.lite.provision import Dsns
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import (
    ClientSettings,
    CredentialSettings,
    DataSettings,
    DispatcherSettings,
    EndpointSettings,
    MetricsSettings,
    ObjectSettings,
    QueueSettings,
    Settings,
    TlsSettings,
    references_in,
    to_document,
)
from tracelake.spark.configuration import INHERITED_FOR_CLUSTERS

WITH_SPARK: Final = frozenset({"query", "worker", "sink"})
WITH_OBJECTS: Final = frozenset({"dispatcher", "query", "worker", "sink"})

LISTENERS_OF: Final[Mapping[str, Sequence[str]]] = {
    "dispatcher": ("dispatcher_task", "dispatcher_internal"),
    "query": ("query_task", "query_internal"),
    "gateway": ("gateway",),
    "delivery": ("delivery_internal",),
    "runner": ("runner",),
}

PASSED_ON: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "JAVA_HOME"}
    | {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    | set(INHERITED_FOR_CLUSTERS)
)
"""The variables that a child inherits. Others (a PGPASSWORD, a DSN) do not reach it."""
OF_AWS: Final = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    | {"AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE"}
    | {"AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"}
    | {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}
    | {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED"}
)
"""Where AWS's own chain looks for credentials: inherited as well by those that use a service of AWS."""


def children(
    names: Sequence[str],
    settings: Settings,
    *,
    ports: Ports,
    tls: TlsFiles,
    dsns: Dsns,
    token_file: Callable[[str], Path],
    issuer: str,
    store: SeaweedFS | None = None,
) -> list[Child]:
    base = _common(settings, ports, tls)
    queue = _queue(settings, dsns)
    known = {
        name: _with_store(
            name, _for(name, base, dsns, queue, issuer=issuer, token_file=token_file(name)), settings, store
        )
        for name in names
    }
    if "runner" in known:
        _introduce(known, settings, ports)
    if "worker" in known:
        known["worker"] = known["worker"].model_copy(
            update={"rpc_pools": settings.rpc_pools, "secrets": settings.secrets}
        )
    if "dispatcher" in known:
        known["dispatcher"] = known["dispatcher"].model_copy(
            update={"hook_secrets": settings.hook_secrets, "dispatcher": _dispatcher(settings, ports)}
        )
    for name in known.keys() & {"dispatcher", "gateway"}:
        known[name] = known[name].model_copy(update={"login_rules": settings.login_rules})
    return [_child(name, child_settings, ports) for name, child_settings in known.items()]


def _introduce(known: dict[str, Settings], settings: Settings, ports: Ports) -> None:
    """A secret that only the Dispatcher and the runner have, made at each start unless it is set."""
    token = settings.udf.invoke_token or SecretStr(secrets.token_urlsafe(32))
    for name in known.keys() & {"dispatcher", "runner"}:
        udf = known[name].udf.model_copy(update={"invoke_url": ports.url("runner"), "invoke_token": token})
        known[name] = known[name].model_copy(update={"udf": udf})


def child_environment(env: Mapping[str, str], *, aws: bool = False) -> dict[str, str]:
    inherited = PASSED_ON | OF_AWS if aws else PASSED_ON
    return {name: value for name, value in env.items() if name in inherited or name.startswith("LC_")}


def _common(settings: Settings, ports: Ports, tls: TlsFiles) -> Settings:
    return settings.model_copy(
        update={
            "state": settings.state.model_copy(update={"dsn": None}),
            "data": DataSettings(),
            "client": ClientSettings(),
            "queue": QueueSettings(),
            "rpc_pools": {},
            "secrets": {},
            "hook_secrets": {},
            "login_rules": {},
            "tls": TlsSettings(ca=tls.ca, cert=tls.cert, key=tls.key),
            "dispatcher": _dispatcher(settings, ports).model_copy(update={"secret_keys": None}),
            "query": settings.query.model_copy(
                update={"task_port": ports.query_task, "internal_port": ports.query_internal}
            ),
            "gateway": settings.gateway.model_copy(update={"port": ports.gateway}),
            "delivery": settings.delivery.model_copy(update={"internal_port": ports.delivery_internal}),
            "endpoints": EndpointSettings(
                dispatcher_task=ports.url("dispatcher_task"),
                dispatcher_internal=ports.url("dispatcher_internal"),
                query_task=ports.url("query_task"),
                query_internal=ports.url("query_internal"),
                delivery_internal=ports.url("delivery_internal"),
            ),
            "udf": settings.udf.model_copy(update={"port": ports.runner, "invoke_url": None, "invoke_token": None}),
            "identity": settings.identity.model_copy(update={"service_token": None, "service_token_file": None}),
        }
    )


def _dispatcher(settings: Settings, ports: Ports) -> DispatcherSettings:
    """With the keys of stored secrets, which only the Dispatcher gets."""
    return settings.dispatcher.model_copy(
        update={"task_port": ports.dispatcher_task, "internal_port": ports.dispatcher_internal}
    )


def _queue(settings: Settings, dsns: Dsns) -> QueueSettings:
    return settings.queue if settings.queue.backend == "sqs" else QueueSettings(dsn=SecretStr(dsns.queue))


def _for(name: str, base: Settings, dsns: Dsns, queue: QueueSettings, *, issuer: str, token_file: Path) -> Settings:
    """Implements the table of docs/concepts/security.md: which process may reach what."""
    state = base.state.model_copy(update={"dsn": SecretStr(dsns.state)})
    data = DataSettings(dsn=SecretStr(dsns.data))
    query = DataSettings(query_dsn=SecretStr(dsns.query))
    own = base.identity.model_copy(update={"service_token_file": token_file})
    public_key = own.model_copy(update={"user_public_key": issuer})
    known: Mapping[str, Mapping[str, object]] = {
        "dispatcher": {"state": state, "queue": queue},
        "query": {"data": query, "identity": own},
        "worker": {"data": data, "queue": queue, "identity": own},
        "sink": {"data": data, "queue": queue, "identity": own},
        "gateway": {"identity": public_key},
        "scheduler": {"identity": own},
        "delivery": {"data": DataSettings(delivery_dsn=SecretStr(dsns.delivery)), "identity": own},
        "runner": {"queue": queue, "identity": own},
    }
    return base.model_copy(update={**known[name], "metrics": _metrics(name, base.metrics)})


def _with_store(name: str, child_settings: Settings, settings: Settings, store: SeaweedFS | None) -> Settings:
    """Processes that use the object store get its keys; only the Dispatcher gets those of STS."""
    objects = store.objects_for(name) if store else settings.objects
    if name not in WITH_OBJECTS:
        objects = objects.model_copy(update={"access_key_id": None, "secret_access_key": None})
    credentials = CredentialSettings()
    if name == "dispatcher":
        credentials = store.credentials(settings.credentials) if store else settings.credentials
    spark = settings.spark if name in WITH_SPARK else settings.spark.model_copy(update={"remote_token": None})
    return child_settings.model_copy(update={"objects": objects, "credentials": credentials, "spark": spark})


def _calls_aws(name: str, settings: Settings) -> bool:
    sends = settings.metrics.cloudwatch_namespace is not None
    by_service = settings.tokens.signer != "pem" or settings.udf.invoker == "lambda" or sends
    by_service |= settings.emr.role_arn is not None
    mints = settings.credentials.role_arn is not None and _without_key(settings.credentials, settings)
    dispatches = name == "dispatcher" and (by_service or mints)
    stores = name in WITH_OBJECTS and _without_key(settings.objects, settings)
    return settings.queue.backend == "sqs" or dispatches or stores or bool(references_in(settings))


def _without_key(group: ObjectSettings | CredentialSettings, settings: Settings) -> bool:
    """Whether S3 or STS is called with what AWS gives this machine."""
    return settings.objects.backend == "s3" and group.access_key_id is None


def _metrics(name: str, base: MetricsSettings) -> MetricsSettings:
    """One listener per process: consecutive ports from the one that is set, in the order of the processes."""
    port = base.port + PROCESSES.index(name) if base.port else 0
    return base.model_copy(update={"port": port}) if name == "dispatcher" else MetricsSettings(port=port)


def _child(name: str, settings: Settings, ports: Ports) -> Child:
    launch = Launch(
        argv=[sys.executable, "-m", "tracelake", name, "--settings", "-"],
        env=child_environment(os.environ, aws=_calls_aws(name, settings)),
        cwd=Path("/"),
        stdin=to_document(settings).encode(),
    )
    return Child(
        name,
        lambda: launch,
        listeners=[ports.url(listener) for listener in LISTENERS_OF.get(name, ())],
        essential=name == "dispatcher",
    )
