"""`trace up`: starts all of Trace on this machine, keeps it running, and stops it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pydantic import SecretStr

from tracelake.domain.flow.workers import WorkerLoad
from tracelake.errors import Refused, SettingsError, SetupError, Unavailable
from tracelake.lite import postgres
from tracelake.lite.backup.listener import listening_for_backups
from tracelake.lite.backup.make import Running
from tracelake.lite.backup.restore import refuse_half_restored
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.child import Child, ChildStatus
from tracelake.lite.home import (
    Home,
    ensure_issuer_key,
    ensure_secret_key,
    ensure_service_tokens,
    held,
    public_pem,
    replace_service_token,
    socket_folder,
    write_private,
    write_status,
)
from tracelake.lite.launch import Launch
from tracelake.lite.network_ports import LISTENERS, Ports, choose_ports, choose_store_ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Embedded, ExternalDsns, dsns_of, new_passwords, owner_dsns, provision
from tracelake.lite.scale_workers import FIRST, ScaleWorkers
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.lite.supervisor import Supervisor
from tracelake.lite.user_token import mint_user_token
from tracelake.ports import ObjectStore
from tracelake.runtime.disk import NO_SPACE
from tracelake.runtime.process import PROCESSES, hide_memory
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import SANDBOXES, EndpointSettings, Settings, TlsSettings
from tracelake.store.first_start import FIRST_ADMIN, LocalToken
from tracelake.wire.client import dispatcher_client
from tracelake.wire.service.calls import SERVICES
from tracelake.wiring import make_objects, s3_objects, with_secrets

Document = dict[str, Any]
"""The content of the ready file: endpoints and tokens."""
RESOLVED = ("state", "data", "queue", "objects")
"""What `trace up` uses itself. Other references are passed on: the process that has the setting fetches the value."""
CERTIFICATE_LOOK_SECONDS = 3600.0
DRAIN_CALL_SECONDS = 5.0
SPACE_CHECK_SECONDS = 1.0
"""How often a file that did not fit on the disk is written again."""


@dataclass(frozen=True)
class UpRequest:
    settings: Settings
    without: frozenset[str] = frozenset()
    ready_file: Path | None = None


class Watcher(Protocol):
    """Shows progress: as a live table or as lines."""

    def changed(self, children: list[ChildStatus]) -> None: ...
    def note(self, sentence: str) -> None: ...
    def ready(self, document: dict[str, Any]) -> None: ...


def up(request: UpRequest, watcher: Watcher) -> None:
    """Returns after a signal, when everything has stopped."""
    _refuse_unknown(request.without)
    os.umask(0o077)  # inherited by every process: only the owner can read the home
    hide_memory()
    home = Home(request.settings.home)
    home.make()
    with held(home):
        refuse_half_restored(home)
        settings = with_secrets(request.settings, *RESOLVED)
        asyncio.run(_Up(replace(request, settings=settings), watcher, home).run())


class _Up:
    def __init__(self, request: UpRequest, watcher: Watcher, home: Home) -> None:
        self._request = request
        self._settings = request.settings
        self._watcher = watcher
        self._home = home
        self._stop = asyncio.Event()
        self._reached: Settings | None = None
        """Settings for our own calls to the Dispatcher."""
        self._worker: Child | None = None
        self._s3: SeaweedFS | None = None
        # Unix sockets need short paths that the server's user can reach: not in the home.
        self._sockets = socket_folder(home)
        self._until_stopped = AsyncExitStack()
        self._supervisor = Supervisor(self._settings.up, home.logs, self._sockets, self._changed)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._request_stop, asyncio.current_task())
        try:
            document = await self._start()
            self._supervisor.watch()
            await self._write_ready(document)
            await asyncio.gather(self._follow_certificates(), self._scale_workers())
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        finally:
            self._remove_ready()
            self._watcher.note("stopping")
            await self._until_stopped.aclose()
            await self._drain_sources()
            await self._supervisor.stop()
            if self._s3 is not None:
                self._s3.clear()
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._home.status.unlink(missing_ok=True)

    async def _drain_sources(self) -> None:
        """Drains sources while workers still run. Does not wait for a Dispatcher that is gone."""
        if self._reached is None:
            return
        try:
            async with asyncio.timeout(DRAIN_CALL_SECONDS), dispatcher_client(self._reached) as dispatcher:
                await dispatcher.drain_sources()
        except (Unavailable, Refused, TimeoutError) as error:
            self._watcher.note(f"sources could not be drained: {error or type(error).__name__}")

    def _request_stop(self, main: asyncio.Task[None] | None) -> None:
        if main is not None and not self._stop.is_set():
            self._stop.set()
            main.cancel()

    async def _start(self) -> Document:
        settings, home = self._settings, self._home
        self._remove_ready()  # a killed `trace up` may have left one
        ports = choose_ports(settings.up.port_base)
        tls = ensure_certificates(home.tls, datetime.now(UTC))
        for note in tls.notes:
            self._watcher.note(note)
        tokens, key = ensure_service_tokens(home, SERVICES), ensure_issuer_key(home)
        shutil.rmtree(home.work, ignore_errors=True)
        home.work.mkdir(mode=0o700, exist_ok=True)  # it is left if it is a file system of its own
        external, passwords = ExternalDsns.of(settings), new_passwords()
        clusters = self._clusters(external, ports)
        store = await self._store(ports)
        names = [name for name in PROCESSES if name not in self._request.without]
        made = children(
            names,
            _with_secret_key(settings, home),
            ports=ports,
            tls=tls,
            dsns=dsns_of(external, clusters.get("state"), clusters.get("data"), passwords),
            token_file=home.service_token,
            issuer=public_pem(key),
            store=store,
        )
        self._reached = _as_caller(settings, ports, tls, home.service_token("supervisor"))
        # Spark takes longest and needs no database: the worker starts first, and waits for the Dispatcher.
        self._worker = next((child for child in made if child.name == FIRST), None)
        if settings.worker.min == 0:
            made = [child for child in made if child.name != FIRST]  # the first is started when there is work
        ahead = [child for child in made if child.name == FIRST and "dispatcher" in names]
        started_ahead = asyncio.create_task(self._supervisor.start(ahead, ahead=True))
        try:
            await self._databases(external, clusters, passwords, tokens)
            # Two stages, so that the Dispatcher is stopped last; started together: the others wait for it.
            stages = (
                [child for child in made if child.name == "dispatcher"],
                [child for child in made if child.name != "dispatcher" and child not in ahead],
            )
            document = self._document(ports, tls, mint_user_token(key, settings.identity, FIRST_ADMIN))
            await _both(asyncio.create_task(self._open(stages, started_ahead, document)), started_ahead)
        finally:
            started_ahead.cancel()
        return document

    async def _open(self, stages: Sequence[Sequence[Child]], ahead: asyncio.Task[None], document: Document) -> None:
        """Starts the stages and publishes the endpoints; tasks that need Spark wait until it is warm."""
        await asyncio.gather(*(self._supervisor.start(stage) for stage in stages))
        await self._write(self._home.ready, document)
        if not ahead.done():
            self._watcher.note("the listeners are open; Spark is starting")

    def _clusters(self, external: ExternalDsns, ports: Ports) -> dict[str, postgres.Cluster]:
        wanted = {"state": external.embeds_state, "data": external.embeds_data}
        return {name: self._cluster(name, ports) for name, embeds in wanted.items() if embeds}

    async def _databases(
        self,
        external: ExternalDsns,
        clusters: dict[str, postgres.Cluster],
        passwords: dict[str, str],
        tokens: Mapping[str, str],
    ) -> None:
        for cluster in clusters.values():
            if not cluster.directory.exists():
                self._watcher.note(f"creating the {cluster.name} database in {cluster.directory}")
        servers = dict(await asyncio.gather(*(asyncio.to_thread(_open, item) for item in clusters.values())))
        await self._supervisor.start([_postgres_child(server) for server in servers.values()])
        self._watcher.note("migrating schemas and roles")
        state, data = servers.get("state"), servers.get("data")
        local = [self._local_token(service, token) for service, token in tokens.items()]
        await asyncio.to_thread(provision, external, state, data, passwords=passwords, tokens=local)
        backups = Running(self._home, owner_dsns(external, state, data), self._objects())
        listening = listening_for_backups(self._sockets, backups, self._sessions)
        await self._until_stopped.enter_async_context(listening)

    def _objects(self) -> ObjectStore:
        if self._s3 is None:
            return make_objects(self._settings)
        return s3_objects(self._s3.objects_for("dispatcher"))

    def _sessions(self) -> set[int]:
        """Each process that we started leads a session of its own."""
        return {child.pid for child in self._supervisor.statuses if child.pid}

    def _local_token(self, service: str, token: str) -> LocalToken:
        runtimes = {"worker": [self._settings.worker.runtime], "runner": [SANDBOXES]}
        return LocalToken(service, token, partial(replace_service_token, self._home, service), runtimes.get(service))

    async def _store(self, others: Ports) -> SeaweedFS | None:
        """Starts the S3 server, if the object store is SeaweedFS."""
        if self._settings.objects.backend != "seaweedfs":
            return None
        ports = choose_store_ports(self._settings.up.port_base, others)
        self._s3 = SeaweedFS(
            self._home.seaweedfs, ports, self._settings.objects, exports=self._settings.query.export_prefix
        )
        await self._supervisor.start([self._s3.child()])
        return self._s3

    def _cluster(self, name: str, ports: Ports) -> postgres.Cluster:
        return postgres.Cluster(
            name,
            self._home.postgres / name,
            self._sockets / f"pg-{name}",
            getattr(ports, f"postgres_{name}"),
            os_user=self._settings.postgres.os_user,
            settings={"shared_buffers": self._settings.postgres.shared_buffers},
        )

    async def _follow_certificates(self) -> None:
        """Renews certificates in time; the listeners reload the file themselves."""
        while True:
            await asyncio.sleep(CERTIFICATE_LOOK_SECONDS)
            await asyncio.to_thread(self._certificates)

    async def _scale_workers(self) -> None:
        settings, reached = self._settings.worker, self._reached
        if self._worker is None or reached is None or "dispatcher" in self._request.without:
            return
        if settings.min == settings.max == 1:
            return
        async with dispatcher_client(reached) as dispatcher:

            async def load() -> WorkerLoad:
                answer = await dispatcher.worker_load(settings.runtime)
                return WorkerLoad(**msgspec.structs.asdict(answer))

            await ScaleWorkers(self._supervisor, self._worker, settings, load, running=min(settings.min, 1)).run()

    def _certificates(self) -> None:
        """A failed renewal is retried in an hour, long before the old certificate expires."""
        try:
            ensure_certificates(self._home.tls, datetime.now(UTC))
        except SetupError as error:
            self._watcher.note(error.message)

    def _changed(self, child: ChildStatus) -> None:
        del child
        children = self._supervisor.statuses
        document = {"pid": os.getpid(), "written": time.time(), "processes": [asdict(item) for item in children]}
        try:
            write_status(self._home.status, json.dumps(document))
        except OSError as error:  # a full disk must not stop the supervisor
            self._watcher.note(f"{self._home.status} was not written: {error.strerror}")
        self._watcher.changed(children)

    def _document(self, ports: Ports, tls: TlsFiles, user_token: str) -> Document:
        gone = {listener for listener in LISTENERS if listener.partition("_")[0] in self._request.without}
        return {
            "pid": os.getpid(),
            "home": str(self._home.root),
            "endpoints": {listener: ports.url(listener) for listener in LISTENERS if listener not in gone},
            "postgres": {
                name: {"host": "127.0.0.1", "port": getattr(ports, f"postgres_{name}")} for name in ("state", "data")
            },
            "ca_file": str(tls.ca),
            "user_token": user_token,
            "service_tokens": str(self._home.service_token("monitor").parent),
        }

    async def _write(self, file: Path, document: Document) -> None:
        """Waits while the disk is full; the processes keep running."""
        while True:
            pids = {child.name: child.pid for child in self._supervisor.statuses}
            try:
                write_private(file, json.dumps({**document, "processes": pids}, indent=2) + "\n")
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._watcher.note(f"{file} was not written: {error.strerror}; retrying")
                await asyncio.sleep(SPACE_CHECK_SECONDS)
            else:
                return

    async def _write_ready(self, document: Document) -> None:
        document["held_back"] = {child.name: child.held_back for child in self._supervisor.statuses if child.held_back}
        for file in self._ready_files():
            await self._write(file, document)
        self._watcher.ready(document)

    def _remove_ready(self) -> None:
        for file in self._ready_files():
            file.unlink(missing_ok=True)

    def _ready_files(self) -> list[Path]:
        """In the home, and the one of `--ready-file`."""
        home = self._home
        return [home.ready, home.all_ready, *([self._request.ready_file] if self._request.ready_file else [])]


async def _both(task: asyncio.Task[None], other: asyncio.Task[None]) -> None:
    """If one fails, the other is canceled before the error is raised."""
    try:
        await asyncio.gather(task, other)
    finally:
        task.cancel()
        other.cancel()
        await asyncio.gather(task, other, return_exceptions=True)


def _with_secret_key(settings: Settings, home: Home) -> Settings:
    """The key of the home, unless one is set."""
    if settings.dispatcher.secret_keys is not None:
        return settings
    update = {"secret_keys": SecretStr(ensure_secret_key(home))}
    return settings.model_copy(update={"dispatcher": settings.dispatcher.model_copy(update=update)})


def _as_caller(settings: Settings, ports: Ports, tls: TlsFiles, token_file: Path) -> Settings:
    return settings.model_copy(
        update={
            "tls": TlsSettings(ca=tls.ca),
            "endpoints": EndpointSettings(dispatcher_internal=ports.url("dispatcher_internal")),
            "identity": settings.identity.model_copy(update={"service_token": None, "service_token_file": token_file}),
        }
    )


def _refuse_unknown(without: frozenset[str]) -> None:
    for name in sorted(without - set(PROCESSES)):
        raise SettingsError(
            f"there is no process {name!r}", where="--without", hint=f"they are: {', '.join(PROCESSES)}"
        )


def _open(cluster: postgres.Cluster) -> tuple[str, Embedded]:
    postgres.prepare(cluster)
    return cluster.name, Embedded(cluster, postgres.reset_password(cluster))


def _postgres_child(server: Embedded) -> Child:
    cluster = server.cluster

    def launch() -> Launch:
        postgres.prepare(cluster)
        return cluster.launch()

    return Child(
        f"postgres-{cluster.name}",
        launch,
        listeners=[f"127.0.0.1:{cluster.port}"],
        probe=lambda: postgres.answers(server.admin()),
        stop_signal=signal.SIGINT,
        essential=True,
    )
