"""Users' exports with default settings on an S3 server: the Query service's key may write only them."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.identity.service_tokens import as_gateway
from tests.support.systems.query import QuerySystem
from tests.support.tls import https
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import TraceError
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.query.process import serving
from tracelake.runtime.metrics import Metrics
from tracelake.wiring import s3_objects

pytestmark = pytest.mark.anyio


async def test_a_user_exports_to_the_default_location_with_the_key_of_the_service(
    system: QuerySystem, seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    store = s3_objects(seaweedfs.objects_for("query"))
    settings = system.settings.model_copy(update={"home": tmp_path})
    serves = serving(settings, system.pool, system.operators.walk.dispatcher, system.spark, store, metrics=Metrics())
    headers = as_gateway("test|acme", "query")
    ca = system.operators.walk.ca
    async with serves as listeners, https(listeners["query_internal"], ca, headers=headers) as listener:
        answer = await listener.post("/v1/query", json={"sql": "SELECT 42 AS answer", "export": {}})
    assert answer.status_code == 200, answer.text
    done = answer.json()["exported"]
    folder = Folder.parse(done["location"])
    assert str(folder).startswith(f"{settings.query.export_prefix}{system.operators.walk.org.id}/")
    everything = s3_objects(seaweedfs.objects_for("worker"))
    (file,) = done["files"]
    assert pq.read_table(io.BytesIO(everything.get(folder.object(file)))).to_pylist() == [{"answer": 42}]
    for name in ("s3://trace/datasets/x/y", "s3://trace/exports-of-others/y"):
        with pytest.raises(TraceError):
            store.put(ObjectName.parse(name), b"not mine")
