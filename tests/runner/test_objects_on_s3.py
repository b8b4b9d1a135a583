"""The object listener before an S3 store: the runner holds no key, and reads and writes with the task's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.operators import registered
from tests.support.systems.runner import HANDS, running_system
from tracelake.domain.object_names import ObjectName
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.settings import CredentialSettings, load_settings
from tracelake.wiring import make_minter, s3_objects

pytestmark = pytest.mark.anyio


async def test_a_function_writes_and_reads_at_s3_with_keys_minted_for_its_token(
    clone: Any, tmp_path: Path, seaweedfs: SeaweedFS
) -> None:
    places = seaweedfs.objects_for("dispatcher")
    settings = load_settings({}, home=tmp_path).model_copy(
        update={"objects": places, "credentials": seaweedfs.credentials(CredentialSettings())}
    )
    objects = s3_objects(places)
    s3 = {"objects": objects, "minter": make_minter(settings), "places": places}
    dsns = {"state": clone("state"), "queue": clone("queue")}
    with registered(hands=HANDS):
        async with running_system(dsns, tmp_path / "s3", s3=s3) as system:
            claimed = await system.claimed()
            dataset = claimed.task.outputs[0].dataset_uuid
            name = f"{places.scratch_bucket}/buffers/{dataset}/{claimed.task.task_id}/1/b.jsonl"
            theirs = ObjectName.parse(f"s3://{places.bucket}/datasets/theirs/v/part.parquet")
            objects.put(theirs, b"theirs", replace=True)
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
            assert objects.get(ObjectName.parse(f"s3://{name}")) == b"one"
