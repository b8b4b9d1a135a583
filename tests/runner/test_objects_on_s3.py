"""A function before an S3 store: no runner holds a key; objects are read and written with the task's own.

The local runner's object listener does it for the code; on Lambda the code does it itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.operators import registered
from tests.support.systems.invokers import lambda_of_the_runner, on_lambda
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.runner import HANDS, RunnerSystem, running_system
from tests.support.systems.udf import bundle
from tracelake.domain.access.object_names import ObjectName
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import Invoked

pytestmark = pytest.mark.anyio

PUBLISHES = """
    from trace_udf import Refused, udf
    from trace_udf.objects import put_at_s3

    @udf
    def handler(task):
        task.publish([{"dedupe_key": "a", "severity": "high"}])
        try:
            put_at_s3(task.credentials(), "THEIRS", b"ours")
        except Refused as refused:
            task.log.warning(f"refused with {refused.status}")
    """


@pytest.fixture
async def system(clone: Any, tmp_path: Path, seaweedfs: SeaweedFS) -> AsyncIterator[RunnerSystem]:
    dsns = {"state": clone("state"), "queue": clone("queue")}
    with registered(hands=HANDS):
        async with running_system(dsns, tmp_path / "s3", s3=on_s3(seaweedfs, tmp_path)) as made:
            yield made


@pytest.fixture
def theirs(system: RunnerSystem) -> ObjectName:
    """An object that no task of the test may touch."""
    name = ObjectName.parse(f"s3://{system.walk.control.places.bucket}/datasets/theirs/v/part.parquet")
    system.walk.control.objects.put(name, b"theirs", replace=True)
    return name


async def test_a_function_writes_and_reads_at_s3_with_keys_minted_for_its_token(
    system: RunnerSystem, theirs: ObjectName
) -> None:
    claimed, control = await system.claimed(), system.walk.control
    dataset = claimed.task.outputs[0].dataset_uuid
    name = f"{control.places.scratch_bucket}/buffers/{dataset}/{claimed.task.task_id}/1/b.jsonl"
    udf = system.python(
        f"""
        import os
        from helpers import ask
        def handler(event, context):
            token = {{"X-Trace-Task-Capability": event["capability_token"]}}
            base = os.environ["TRACE_OBJECTS_URL"] + "/"
            ours = base + {name!r}
            return [*(ask(ours, "PUT", body, token)[0] for body in (b"one", b"one", b"two")),
                    ask(ours, "GET", None, token),
                    ask(base + {theirs.bucket + "/" + theirs.key!r}, "GET", None, token)[0]]
        """
    )
    answer = await system.run(udf, claimed)
    assert answer.body == [200, 200, 409, [200, "one"], 403], answer
    assert control.objects.get(ObjectName.parse(f"s3://{name}")) == b"one"


async def test_on_lambda_a_function_publishes_rows_to_s3_with_keys_of_its_task_and_reaches_nothing_else(
    system: RunnerSystem, theirs: ObjectName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the Dispatcher")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    claimed, control = await system.claimed(), system.walk.control
    code = textwrap.dedent(PUBLISHES).replace("THEIRS", str(theirs))
    udf = system.bundles.put(bundle(code), "python", "main.handler")
    async with lambda_of_the_runner() as server, on_lambda(system, server) as invoking:
        assert await invoking.call(udf, claimed) == Invoked()
        assert await invoking.logged(claimed) == ["refused with 403"]
    assert await system.status(claimed.task.task_id) == "Completed"
    (row,) = await system.fetch("SELECT batch_uri FROM buffer_publishes WHERE task_id = $1", claimed.task.task_id)
    assert b'"dedupe_key":"a"' in control.objects.get(ObjectName.parse(row["batch_uri"]))
    assert control.objects.get(theirs) == b"theirs"
