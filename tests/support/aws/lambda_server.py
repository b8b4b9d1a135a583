"""AWS Lambda over HTTP: the calls that Trace makes, and one function, run as Lambda runs it.

Each environment is a process with the Runtime API of its own, in which the runtime's client for Python calls the
handler of the zip. It finds the standard library and the content of the zip. It serves one call at a time and is used
again, by the same tenant if the function has tenant isolation.

What it does not show: roles and policies, networks, the isolation of environments from each other, and freezing them
between calls.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.support.aws.faulty_aws import Refusal
from tracelake.sandbox.contents import interpreter
from tracelake.sandbox.process import process_tree
from tracelake.udf.runtime_api import FunctionError, Result, RuntimeApi
from tracelake.udf.sandbox_contents import library
from tracelake.udf.sandbox_listener import SandboxListener

FUNCTION = "trace-runner"
PAYLOAD_BYTES = 6 * 1024 * 1024
ANSWER_BYTES = 6 * 1024 * 1024


@dataclass(frozen=True)
class Called:
    kind: str
    tenant: str | None
    payload: bytes


@dataclass
class LambdaServer:
    code: Path
    """The unpacked zip."""
    handler: str
    runtime: Path
    """The runtime's client, which Lambda has."""
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    """Of the function, as it is configured."""
    per_tenant: bool = True
    concurrency: int = 100
    timeout_seconds: float = 900.0
    state: str = "Active"
    url: str = ""
    calls: list[Called] = field(default_factory=list)
    environments: list[LambdaEnvironment] = field(default_factory=list)
    refuses: Callable[[str], Refusal | None] = lambda _operation: None
    cuts: Callable[[], bool] = lambda: False
    """Whether the answer to a call is lost, and the connection with it."""

    def refuse(self, refusal: Refusal, *, operation: str = "Invoke", times: int = 10**9) -> None:
        left = [times]

        def refuses(asked: str) -> Refusal | None:
            if asked != operation or not left[0]:
                return None
            left[0] -= 1
            return refusal

        self.refuses = refuses

    async def invoke(self, request: web.Request) -> web.StreamResponse:
        self._check_signature(request)
        body = await request.read()
        kind, tenant = request.headers["X-Amz-Invocation-Type"], request.headers.get("X-Amz-Tenant-Id")
        self.calls.append(Called(kind, tenant, body))
        if (refusal := self._refusal("Invoke", request, body, tenant)) is not None:
            return refused(refusal)
        if kind == "DryRun":
            return web.Response(status=204)
        if sum(item.busy for item in self.environments) >= self.concurrency:
            reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
            return refused(Refusal("TooManyRequestsException", 429, "Rate Exceeded."), Reason=reason)
        result = await self._environment_for(tenant).run(body, self.timeout_seconds)
        if self.cuts() and request.transport is not None:
            request.transport.close()
        if isinstance(result, FunctionError):
            return web.Response(body=result.as_json(), headers={"X-Amz-Function-Error": "Unhandled"})
        return web.Response(body=result)

    async def configuration(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal("GetFunctionConfiguration", request)) is not None:
            return refused(refusal)
        about = {"State": self.state, "Runtime": "python3.12", "MemorySize": 1024, "Timeout": int(self.timeout_seconds)}
        return web.json_response(about)

    async def reserved(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal("GetFunctionConcurrency", request)) is not None:
            return refused(refusal)
        return web.json_response({"ReservedConcurrentExecutions": self.concurrency})

    async def close(self) -> None:
        for environment in self.environments:
            await environment.close()

    def _refusal(
        self, operation: str, request: web.Request, body: bytes = b"", tenant: str | None = None
    ) -> Refusal | None:
        if (refusal := self.refuses(operation)) is not None:
            return refusal
        if request.match_info["name"] != FUNCTION:
            return Refusal("ResourceNotFoundException", 404, "Function not found")
        if len(body) > PAYLOAD_BYTES:
            return Refusal("RequestTooLargeException", 413, "Request must be smaller than 6291456 bytes")
        if operation == "Invoke" and self.per_tenant != (tenant is not None):
            return Refusal("InvalidParameterValueException", 400, "the tenant does not fit the function")
        return None

    def _check_signature(self, request: web.Request) -> None:
        authorization = request.headers.get("Authorization", "")
        assert "/lambda/aws4_request" in authorization, "the call is not signed"
        signed = authorization.partition("SignedHeaders=")[2]
        assert "X-Amz-Tenant-Id" not in request.headers or "x-amz-tenant-id" in signed, "the tenant is not signed"

    def _environment_for(self, tenant: str | None) -> LambdaEnvironment:
        for environment in self.environments:
            if not environment.busy and not environment.ended and environment.tenant == tenant:
                return environment
        self.environments.append(LambdaEnvironment(self, tenant))
        return self.environments[-1]


class LambdaEnvironment:
    def __init__(self, server: LambdaServer, tenant: str | None) -> None:
        self.tenant, self.served, self.busy, self.ended = tenant, 0, False, False
        self.output = b""
        self._server = server
        self._api = RuntimeApi(ANSWER_BYTES)
        self._listener = SandboxListener(self._handle, 16, None)
        self._process: asyncio.subprocess.Process | None = None
        self._died: asyncio.Task[bytes] | None = None

    async def run(self, payload: bytes, seconds: float) -> Result:
        self.busy = True
        self.served += 1
        try:
            process = self._process or await self._start()
            died = self._died = self._died or asyncio.create_task(_read_all(process))
            deadline_ms = int((time.time() + seconds) * 1000)
            asked = asyncio.create_task(self._api.invoke(str(uuid4()), payload, deadline_ms))
            await asyncio.wait({asked, died}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            asked.cancel()
            kind = "Runtime.ExitError" if died.done() else "Sandbox.Timedout"
            await self.close()
            return self._api.init_error or FunctionError(kind, "the environment has ended")
        finally:
            self.busy = False

    async def close(self) -> None:
        """With all its processes, as Lambda ends an environment."""
        self.ended = True
        if self._process is not None and self._died is not None:
            for pid in process_tree(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.output = await self._died
        await self._listener.close()

    async def _start(self) -> asyncio.subprocess.Process:
        port, server = await self._listener.open_loopback(), self._server
        argv = [interpreter(), "-S", "-m", "awslambdaric", server.handler]
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": str(server.folder),
            "PYTHONPATH": f"{server.code}:{server.runtime}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LAMBDA_TASK_ROOT": str(server.code),
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{port}",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1024",
            **server.environment,
        }
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=server.code,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return self._process

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._api.handle(request)
        if request.path.endswith("/invocation/next") and self.tenant is not None:
            answer.headers["Lambda-Runtime-Aws-Tenant-Id"] = self.tenant
        return answer


@asynccontextmanager
async def running_lambda(archive: bytes, handler: str) -> AsyncIterator[LambdaServer]:
    folder = Path(tempfile.mkdtemp(prefix="lambda-"))  # short: it holds sockets
    await asyncio.to_thread(zipfile.ZipFile(io.BytesIO(archive)).extractall, folder / "task")
    for name in ("tmp", "runtime"):
        (folder / name).mkdir()
    for path in library().values():
        (folder / "runtime" / path.name).symlink_to(path)
    server = LambdaServer(folder / "task", handler, folder / "runtime", folder / "tmp")
    app = web.Application(client_max_size=2**25)
    app.router.add_post("/2015-03-31/functions/{name}/invocations", server.invoke)
    app.router.add_get("/2015-03-31/functions/{name}/configuration", server.configuration)
    app.router.add_get("/2019-09-30/functions/{name}/concurrency", server.reserved)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.close()
        await runner.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def refused(refusal: Refusal, **more: Any) -> web.Response:
    body = json.dumps({"Message": refusal.message, **more})
    headers = {"x-amzn-ErrorType": refusal.code}
    return web.Response(text=body, status=refusal.status, headers=headers, content_type="application/json")


async def _read_all(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = await process.stdout.read()
    await process.wait()
    return output
