"""EMR Serverless over HTTP: the calls that Trace makes; a job run is a process with a Spark of its own.

Its keys are those of a session that the store's STS opens with the `executionIamPolicy` of the job run, so what a job
may do is what a real S3 server makes of that policy and the role of tasks.

What it does not show: images, networks, executors on other machines, how EMR Serverless gives a job its keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.support import ROOT
from tests.support.aws.faulty_aws import Refusal
from tests.support.aws.lambda_server import refused
from tracelake.adapters.invoker_emr import EmrJobRunner, JobPlace
from tracelake.dispatcher.control import Control
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import SessionKeys
from tracelake.sandbox.process import process_tree
from tracelake.settings import CredentialSettings, EmrSettings, load_settings
from tracelake.spark.configuration import spark_home
from tracelake.spark.java import find_java
from tracelake.wiring import make_minter

APPLICATION = "00trace1"
ROLE = "arn:aws:iam::123456789012:role/trace-job"
ENTRY_POINT = ROOT / "deploy" / "job_run.py"
CONFIGURATION = "--conf spark.ui.enabled=false --conf spark.driver.memory=512m --conf spark.sql.shuffle.partitions=2"


@dataclass
class JobRun:
    id: str
    asked: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    keys: SessionKeys | None
    canceled: bool = False
    stated: str | None = None
    """Its state, if a test says so."""

    @property
    def state(self) -> str:
        if self.stated or self.canceled:
            return self.stated or "CANCELLED"
        code = self.process.poll()
        return "RUNNING" if code is None else "FAILED" if code else "SUCCESS"

    @property
    def policy(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.asked["executionIamPolicy"]["policy"])
        return found

    def end(self) -> None:
        for pid in process_tree(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class EmrServer:
    folder: Path
    store: SeaweedFS | None
    program: list[str] | None = None
    """What runs in place of Spark."""
    url: str = ""
    state: str = "STARTED"
    runs: dict[str, JobRun] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    refuses: Callable[[str], Refusal | None] = lambda _operation: None
    cuts: Callable[[str], bool] = lambda _operation: False
    """Whether an answer is lost, and the connection with it."""

    def refuse(self, refusal: Refusal, *, operation: str = "StartJobRun", times: int = 10**9) -> None:
        left = [times]

        def refuses(asked: str) -> Refusal | None:
            if asked != operation or not left[0]:
                return None
            left[0] -= 1
            return refusal

        self.refuses = refuses

    async def start(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal("StartJobRun", request)) is not None:
            return refused(refusal)
        asked = await request.json()
        token = asked["clientToken"]
        run = next((item for item in self.runs.values() if item.asked["clientToken"] == token), None)
        if run is None:
            keys = await self._keys(asked)
            run = JobRun(f"run{len(self.runs)}", asked, await asyncio.to_thread(self._process, asked, keys), keys)
            self.runs[run.id] = run
        if self.cuts("StartJobRun") and request.transport is not None:
            request.transport.close()
        return web.json_response({"applicationId": APPLICATION, "jobRunId": run.id, "arn": "arn:aws:emr"})

    async def get(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal("GetJobRun", request)) is not None:
            return refused(refusal)
        run = self.runs.get(request.match_info["run"])
        if run is None:
            return refused(Refusal("ResourceNotFoundException", 404, "no such job run"))
        details = "as a test wants it" if run.stated else ""
        return web.json_response({"jobRun": {"jobRunId": run.id, "state": run.state, "stateDetails": details}})

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal("CancelJobRun", request)) is not None:
            return refused(refusal)
        run = self.runs[request.match_info["run"]]
        run.canceled = run.process.poll() is None
        await asyncio.to_thread(run.end)
        return web.json_response({"applicationId": APPLICATION, "jobRunId": run.id})

    async def application(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal("GetApplication", request)) is not None:
            return refused(refusal)
        about = {"applicationId": APPLICATION, "state": self.state, "releaseLabel": "emr-8", "type": "Spark"}
        return web.json_response({"application": about})

    def _refusal(self, operation: str, request: web.Request) -> Refusal | None:
        self.calls.append(operation)
        assert "/emr-serverless/aws4_request" in request.headers.get("Authorization", ""), "the call is not signed"
        if (refusal := self.refuses(operation)) is not None:
            return refusal
        if request.match_info["application"] != APPLICATION:
            return Refusal("ResourceNotFoundException", 404, "Application does not exist")
        return None

    async def _keys(self, asked: Mapping[str, Any]) -> SessionKeys | None:
        if self.store is None:
            return None
        credentials = self.store.credentials(CredentialSettings())
        settings = load_settings({}, home=self.folder).model_copy(
            update={"objects": self.store.objects_for("dispatcher"), "credentials": credentials}
        )
        minter = make_minter(settings)
        assert minter is not None
        return await minter.mint(asked["executionIamPolicy"]["policy"], session=uuid4().hex, seconds=900)

    def _process(self, asked: Mapping[str, Any], keys: SessionKeys | None) -> subprocess.Popen[bytes]:
        submit = asked["jobDriver"]["sparkSubmit"]
        java = find_java(os.environ, self.folder / "cache").home
        environment = {
            "PATH": os.defpath,
            "JAVA_HOME": str(java),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.folder),
        }
        if keys is not None:
            environment |= {
                "AWS_ACCESS_KEY_ID": keys.access_key_id,
                "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
                "AWS_SESSION_TOKEN": keys.session_token,
            }
        script = submit["entryPoint"].removeprefix("file://")
        options = ["--master", "local[2]", *shlex.split(submit.get("sparkSubmitParameters", ""))]
        spark = [str(spark_home() / "bin" / "spark-submit"), *options, script, *submit["entryPointArguments"]]
        with (self.folder / f"job{len(self.runs)}.log").open("wb") as log:
            return subprocess.Popen(
                self.program or spark,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("job*.log")))


@asynccontextmanager
async def running_emr(
    folder: Path, store: SeaweedFS | None = None, program: list[str] | None = None
) -> AsyncIterator[EmrServer]:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    server, app = EmrServer(folder, store, program), web.Application()
    app.router.add_post("/applications/{application}/jobruns", server.start)
    app.router.add_get("/applications/{application}/jobruns/{run}", server.get)
    app.router.add_delete("/applications/{application}/jobruns/{run}", server.cancel)
    app.router.add_get("/applications/{application}", server.application)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        for run in server.runs.values():
            await asyncio.to_thread(run.end)
        await runner.cleanup()


def runner_of(server: EmrServer) -> Callable[[Control, Path], EmrJobRunner]:
    """For `walking`."""

    def made(control: Control, ca: Path) -> EmrJobRunner:
        places = control.places
        place = JobPlace(control.task_url, ca.read_text(encoding="ascii"), places.region, places.endpoint)
        return EmrJobRunner(emr_settings(server), APPLICATION, control.objects, place)

    return made


def emr_settings(server: EmrServer) -> EmrSettings:
    return EmrSettings(
        role_arn=ROLE,
        endpoint=server.url,
        entry_point=f"file://{ENTRY_POINT}",
        submit_parameters=CONFIGURATION,
        poll_seconds=0.2,
    )
