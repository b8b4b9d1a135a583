"""Functions as AWS would run them: another process, APIs over TLS, session keys for a real S3 server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tests.support import ROOT
from tests.support.dispatcher.control import deployed_and_active
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.walk import Walk, walking
from tests.support.udf.bundles import BUNDLE, dag, sha256
from tests.support.verbs import announce_bundle, finalize_bundle, trigger, upload_bundle
from tests.support.waiting import SECONDS
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.store.identity import User
from tracelake.wire.task.lifecycle import Claimed, Invocation
from tracelake.wire.user.bundles import BundleRequest

PYTHON = """
import json, sys
sys.path.insert(0, sys.argv[1])
import main
print(json.dumps(main.handler(json.load(sys.stdin), None)))
"""
NODE = """
const { handler } = require(process.argv[1] + "/main.js");
const event = JSON.parse(require("fs").readFileSync(0));
handler(event, {}).then((answer) => { console.log(JSON.stringify(answer)); process.exit(0); });
"""


@dataclass(frozen=True)
class Functions:
    walk: Walk
    folder: Path

    async def claimed(self, **scope: Any) -> Claimed:
        """A task of `detect`."""
        control, org = self.walk.control, self.walk.org
        await trigger(control, org.id, "watch", "orders", request_id=uuid4(), **(scope or {"start": 0, "end": 9}))
        await self.walk.until_outbox_is_empty()
        task = await control.pool.fetchval(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'detect' AND t.status = 'Queued'"
        )
        answer = (await self.walk.dispatcher.claim_batch([task], "function"))[0]
        assert isinstance(answer, Claimed)
        return answer

    async def run(self, code: str, claimed: Claimed, *, file: str = "main.py", **more: Any) -> tuple[Any, str]:
        """What the function returned, and what it wrote to standard error."""
        (self.folder / file).write_text(code)
        python = [sys.executable, "-c", PYTHON, str(self.folder)]
        argv = python if file.endswith(".py") else ["node", "-e", NODE, str(self.folder)]
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        async with asyncio.timeout(SECONDS):
            out, err = await child.communicate(event_of(claimed, **more))
        assert child.returncode == 0, err.decode()
        return json.loads(out), err.decode()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "TRACE_TASK_URL": self.walk.listeners["dispatcher_task"],
            "SSL_CERT_FILE": str(self.walk.ca),
            "NODE_EXTRA_CA_CERTS": str(self.walk.ca),
        }

    async def status(self, task: UUID) -> tuple[str, str | None, bool]:
        """Of a task, with what it failed of and whether it is to be tried again."""
        sql = "SELECT status::text, error_message, next_retry_at IS NOT NULL FROM tasks WHERE id = $1"
        row = await self.walk.control.pool.fetchrow(sql, task)
        assert row is not None
        return row[0], row[1], row[2]

    async def batches(self) -> list[dict[str, Any]]:
        """Every batch that was published, with its rows."""
        rows = await self.walk.control.pool.fetch("SELECT * FROM buffer_publishes ORDER BY created_at, id")
        return [dict(row) for row in rows]


def event_of(claimed: Claimed, **more: Any) -> bytes:
    payload = msgspec.to_builtins(claimed.task) | {
        "lease_token": str(claimed.lease_token),
        "lease_expires_at": claimed.lease_expires_at.isoformat(),
        "capability_token": claimed.capability_token,
        **more,
    }
    return msgspec.json.encode(msgspec.convert(payload, Invocation))


@asynccontextmanager
async def functions(state_db: str, queue_db: str, folder: Path, server: SeaweedFS) -> AsyncIterator[Functions]:
    async with walking(state_db, queue_db, folder, **on_s3(server, folder)) as walk:
        control, org = walk.control, walk.org
        user = User(org.user, org.id, "acme", None, "admin")
        request = BundleRequest(name="detector", kind="python", sha256=sha256(BUNDLE), size_bytes=len(BUNDLE))
        made = await announce_bundle(control, user, request)
        await upload_bundle(control, org.id, made.id, BUNDLE)
        assert (await finalize_bundle(control, org.id, made.id)).status == "Ready"
        await deployed_and_active(control, org, dag())
        code = folder / "code"
        code.mkdir()
        yield Functions(walk, code)
