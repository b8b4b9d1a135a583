"""As much of Kubernetes' API as Spark's scheduler uses, over HTTP; a pod is a process of this machine.

It does what the entry point of Spark's image does for an executor, and knows nothing of roles, images or volumes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.spark.cluster import family_of, kill
from tracelake.spark.configuration import spark_home
from tracelake.spark.launch import TIE

Json = dict[str, Any]


@dataclass
class Kubernetes:
    """Of one namespace."""

    folder: Path
    java: Path
    python: Path
    namespace: str
    address: str = ""
    pods: dict[str, Json] = field(default_factory=dict)
    """Those that are there now."""
    specs: list[Json] = field(default_factory=list)
    """Of all pods that were ever created."""
    paths: set[str] = field(default_factory=set)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _watchers: set[web.WebSocketResponse] = field(default_factory=set)
    _version: int = 0

    def pids(self) -> list[int]:
        """The executors that run."""
        return [process.pid for process in self.processes.values() if process.poll() is None]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.add(request.path)
        kind, _, name = request.match_info["rest"].partition("/")
        if kind == "pods" and request.query.get("watch") == "true":
            return await self._watch(request)
        if kind != "pods":
            return web.json_response(await self._other(request, kind))
        if request.method == "POST":
            return web.json_response(await self._create(await request.json()), status=201)
        if request.method == "DELETE":
            for item in [name] if name else list(self.pods):
                await self._delete(item)
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        if name:
            found = self.pods.get(name)
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            return web.json_response(found or missing, status=200 if found else 404)
        return web.json_response(self._list("PodList", list(self.pods.values())))

    def end(self) -> None:
        for process in self.processes.values():
            kill(family_of(process.pid))
            process.wait()

    async def reap(self) -> None:
        """What a kubelet does: reports the pods whose process has ended."""
        while True:
            await asyncio.sleep(0.2)
            for name, process in self.processes.items():
                pod = self.pods.get(name)
                if pod and process.poll() is not None and pod["status"]["phase"] == "Running":
                    self._set_phase(pod, "Succeeded" if process.returncode == 0 else "Failed")
                    await self._tell("MODIFIED", pod)

    async def _create(self, pod: Json) -> Json:
        name = pod["metadata"]["name"]
        self.specs.append(pod)
        metadata = {"namespace": self.namespace, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.pods[name] = made = {**pod, "metadata": {**pod["metadata"], **metadata}, "status": {}}
        self._set_phase(made, "Running")
        self.processes[name] = self._run(made)
        await self._tell("ADDED", made)
        return made

    def _run(self, pod: Json) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        assert container["args"] == ["executor"]
        given = {item["name"]: item["value"] for item in container["env"] if item.get("value") is not None}
        options = [value for name, value in sorted(given.items()) if name.startswith("SPARK_JAVA_OPT_")]
        name, heap = pod["metadata"]["name"], given["SPARK_EXECUTOR_MEMORY"]
        place = self.folder / name
        place.mkdir()
        argv = [
            *(str(self.java / "bin" / "java"), *options, f"-Xms{heap}", f"-Xmx{heap}"),
            *("-cp", f"{spark_home()}/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"),
            *("--driver-url", given["SPARK_DRIVER_URL"], "--executor-id", given["SPARK_EXECUTOR_ID"]),
            *("--cores", given["SPARK_EXECUTOR_CORES"], "--app-id", given["SPARK_APPLICATION_ID"]),
            *("--hostname", "127.0.0.1", "--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]),
            *("--podName", name),
        ]
        own = {"PATH": os.environ["PATH"], "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": str(self.python)}
        env = {**given, **own, "SPARK_LOCAL_DIRS": str(place), "SPARK_LOCAL_IP": "127.0.0.1"}
        tied = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *argv]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(tied, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def _delete(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        if pod is not None:
            kill(family_of(self.processes[name].pid))
            self.processes[name].wait()
            await self._tell("DELETED", pod)

    async def _watch(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._watchers.add(socket)
        try:
            async for message in socket:
                if message.type in (WSMsgType.CLOSE, WSMsgType.ERROR):
                    break
        finally:
            self._watchers.discard(socket)
        return socket

    async def _tell(self, kind: str, pod: Json) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        for socket in list(self._watchers):
            await socket.send_str(json.dumps({"type": kind, "object": pod}))

    def _set_phase(self, pod: Json, phase: str) -> None:
        (container,) = pod["spec"]["containers"]
        ended = {"exitCode": 0 if phase == "Succeeded" else 1}
        state = {"running": {}} if phase == "Running" else {"terminated": ended}
        status = {"name": container["name"], "state": state, "ready": phase == "Running", "restartCount": 0}
        pod["status"] = {"phase": phase, "containerStatuses": [{**status, "image": "", "imageID": ""}]}

    async def _other(self, request: web.Request, kind: str) -> Json:
        """Config maps, services and volumes: taken, and never read back."""
        if request.method == "POST":
            return dict(await request.json())
        if request.method == "DELETE":
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return self._list({"configmaps": "ConfigMapList", "services": "ServiceList"}.get(kind, "List"), [])

    def _list(self, kind: str, items: list[Json]) -> Json:
        return {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": str(self._version)}, "items": items}


@asynccontextmanager
async def kubernetes(folder: Path, java: Path, python: Path, namespace: str) -> AsyncIterator[Kubernetes]:
    """`folder` is there."""
    made = Kubernetes(folder, java, python, namespace)
    app = web.Application()
    app.router.add_route("*", f"/api/v1/namespaces/{namespace}/{{rest:.*}}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    reaping = asyncio.create_task(made.reap())
    try:
        yield made
    finally:
        reaping.cancel()
        made.end()
        await runner.cleanup()
