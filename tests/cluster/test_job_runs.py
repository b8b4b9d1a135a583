"""Tasks of `emr_serverless` on a Spark of their own, each with the keys of its session policy on a real S3 server.

About 60 s on two free cores: each job run starts a JVM by spark-submit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import ClientError

from tests.support.aws.emr_server import ROLE, EmrServer, JobRun, runner_of, running_emr
from tests.support.aws.s3_cases import s3_client
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import walking
from tests.support.verbs import cancel_task
from tests.support.waiting import until
from tracelake.domain.access.object_names import ObjectName
from tracelake.lite.network_ports import free_port
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.operators.api.context import Resources
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1200)]

ROWS = 1000
DAG = """
name: emr
defaults: {runtime: emr_serverless, max_attempts: 1, heartbeat_interval_seconds: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: numbers
    operator: python
    config: {function: "tests.support.spark.functions:numbers", args: {rows: 1000}, mode: full}
    inputs: [{from: {job: go}}]
  - name: sums
    operator: sql
    config: {query: "SELECT count(*) AS n, sum(id) AS total FROM numbers", mode: full}
    inputs: [{from: {job: numbers}}]
publish: {numbers: {job: numbers}, sums: {job: sums}}
"""
HOLD = """
name: hold
defaults: {runtime: emr_serverless, max_attempts: 1, heartbeat_interval_seconds: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: held
    operator: python
    config: {function: "tests.support.spark.functions:held", args: {folder: FOLDER}, mode: full}
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
publish: {held: {job: held}}
"""


@dataclass(frozen=True)
class JobSystem:
    system: OperatorSystem
    emr: EmrServer
    store: SeaweedFS

    async def tasks(self) -> dict[str, tuple[str, int, int]]:
        sql = """
            SELECT j.name, t.status::text, t.attempt, t.platform_failures FROM tasks t JOIN jobs j ON j.id = t.job_id
             WHERE j.operator <> 'noop'"""
        return {row["name"]: tuple(row)[1:] for row in await self.system.fetch(sql)}

    def run_of(self, job: str) -> JobRun:
        (found,) = [run for run in self.emr.runs.values() if run.asked["name"].split()[0].endswith(f".{job}")]
        return found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
async def jobs(clone: Callable[[Database], str], seaweedfs: SeaweedFS, tmp_path: Path) -> AsyncIterator[JobSystem]:
    async with (
        running_emr(tmp_path / "emr", seaweedfs) as emr,
        walking(
            clone("state"),
            clone("queue"),
            tmp_path,
            **on_s3(seaweedfs, tmp_path),
            job_runner=runner_of(emr),
            task_port=free_port(),
        ) as walk,
    ):
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is elsewhere
        yield JobSystem(system, emr, seaweedfs)


async def test_tasks_run_as_jobs_that_may_touch_what_their_tokens_name_and_nothing_else(jobs: JobSystem) -> None:
    system = jobs.system
    await system.deploy(DAG)
    await system.trigger("emr", "go")
    await system.settled()
    done = ("Completed", 1, 0)
    assert await jobs.tasks() == {"numbers": done, "sums": done}, jobs.emr.logs()
    assert await system.rows("sums") == [{"n": ROWS, "total": sum(range(ROWS))}]
    assert len(jobs.emr.runs) == 2
    for job in ("numbers", "sums"):
        run = jobs.run_of(job)
        assert run.asked["executionRoleArn"] == ROLE
        assert "eyJ" not in json.dumps(run.asked), "no token is among the parameters"
    await _keys_open_what_the_task_has(jobs)


async def _keys_open_what_the_task_has(jobs: JobSystem) -> None:
    """As SeaweedFS decides by the `executionIamPolicy` of the job runs."""
    files = {name: await _file(jobs.system, name) for name in ("numbers", "sums")}
    keys = jobs.run_of("sums").keys
    assert keys is not None
    client = s3_client(jobs.store, keys.access_key_id, keys.secret_access_key, keys.session_token)

    def read(name: ObjectName) -> bytes:
        return bytes(client.get_object(Bucket=name.bucket, Key=name.key)["Body"].read())

    assert read(files["numbers"])
    assert read(files["sums"])
    document = ObjectName.parse(jobs.run_of("numbers").asked["jobDriver"]["sparkSubmit"]["entryPointArguments"][0])
    assert jobs.system.walk.control.objects.get(document), "the other task has one"
    with pytest.raises(ClientError, match="AccessDenied"):
        read(document)
    with pytest.raises(ClientError, match="AccessDenied"):
        client.put_object(Bucket=files["numbers"].bucket, Key=files["numbers"].key, Body=b"other")


async def _file(system: OperatorSystem, name: str) -> ObjectName:
    (partition,) = await system.partitions(name)
    return ObjectName.parse(f"{partition['location']}{partition['files'][0]['name']}")


async def test_a_job_goes_on_while_its_dispatcher_is_replaced_and_a_canceled_task_ends_its_job(
    clone: Callable[[Database], str], seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    state, queue, marks, port = clone("state"), clone("queue"), tmp_path / "marks", free_port()
    marks.mkdir()
    async with running_emr(tmp_path / "emr", seaweedfs) as emr:
        more: dict[str, Any] = {**on_s3(seaweedfs, tmp_path), "job_runner": runner_of(emr), "task_port": port}
        async with walking(state, queue, tmp_path, **more) as walk:
            system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)
            jobs = JobSystem(system, emr, seaweedfs)
            await system.deploy(DAG)
            await system.trigger("emr", "go")
            await system.settled()
            await system.deploy(HOLD.replace("FOLDER", str(marks)))
            await system.trigger("hold", "go")
            await until(lambda: list(marks.glob("held.*")), "the job works")
            await walk.until_outbox_is_empty()
        async with walking(state, queue, tmp_path, **more, deploys=False, replica="two") as walk:
            system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)
            jobs = JobSystem(system, emr, seaweedfs)
            assert jobs.run_of("held").state == "RUNNING"
            (marks / "go").touch()
            await system.settled()
            assert (await jobs.tasks())["held"] == ("Completed", 1, 0), emr.logs()
            assert len(await system.rows("held")) == ROWS
            (marks / "go").unlink()
            for mark in marks.glob("held.*"):
                mark.unlink()
            await system.trigger("hold", "go")
            await until(lambda: list(marks.glob("held.*")), "another job works")
            task = await walk.control.pool.fetchval("SELECT id FROM tasks WHERE status = 'Running'")
            await cancel_task(walk.control, walk.org.id, task, "enough")
            await until(lambda: list(emr.runs.values())[-1].process.poll() is not None, "the job has ended")
            assert await walk.control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", task) == "Canceled"
