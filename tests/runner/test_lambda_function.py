"""The zip of the runner, and its handler as Lambda calls it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.dispatcher.control import an_org, deployed_and_active
from tests.support.systems.invokers import (
    environment_of,
    lambda_of_the_runner,
    lambda_settings,
    on_lambda,
    runner_zip,
)
from tests.support.systems.runner import DAG, RunnerSystem, invocation
from tracelake.adapters.invoker_lambda import LambdaInvoker
from tracelake.errors import InvalidRequest
from tracelake.ports import Invoked
from tracelake.sandbox.contents import interpreter
from tracelake.udf.function_zip import function_zip
from tracelake.udf.lambda_function import settings_of

pytestmark = pytest.mark.anyio

COMPLETES = """
    from helpers import complete
    def handler(event, context):
        return complete(event)
    """
LOOKS = """
    import importlib.util, os
    def handler(event, context):
        found = [name for name in ("tracelake", "aiohttp", "msgspec") if importlib.util.find_spec(name)]
        keys = [name for name in os.environ if name.startswith(("AWS_ACCESS", "AWS_SECRET", "TRACE_TLS"))]
        raise ValueError(f"finds {found} {keys} {'TRACE_OBJECTS_URL' in os.environ}")
    """


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def test_the_same_packages_give_the_same_bytes_and_more_than_code_is_in_them(tmp_path: Path) -> None:
    first = runner_zip()
    program = (
        "import hashlib, sys; from tracelake.udf.function_zip import function_zip as z;"
        " sys.stdout.write(hashlib.sha256(z().archive).hexdigest())"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    again = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, check=True)
    assert again.stdout.decode() == hashlib.sha256(first.archive).hexdigest()
    assert first.unpacked_bytes < 250 * 1024 * 1024  # Lambda takes no more
    assert len(first.archive) < 50 * 1024 * 1024


def test_the_zip_has_what_its_handler_imports_and_nothing_for_aws_or_spark(tmp_path: Path) -> None:
    archive = tmp_path / "runner.zip"
    archive.write_bytes(runner_zip().archive)
    with zipfile.ZipFile(archive) as opened:
        names = {name.partition("/")[0] for name in opened.namelist()}
        opened.extractall(tmp_path / "task")
    assert not names & {"boto3", "botocore", "aiobotocore", "pyspark", "pyarrow", "asyncpg", "psycopg"}
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'task')!r}); import awslambdaric,"
        " tracelake.udf.lambda_function as f; f.settings_of({}); print(f.__file__)"
    )
    found = subprocess.run([interpreter(), "-I", "-S", "-c", program], capture_output=True, check=True)
    assert found.stdout.decode().startswith(str(tmp_path / "task"))


def test_the_authority_is_put_into_the_zip_and_must_be_one(tmp_path: Path) -> None:
    ca = tmp_path / "authority.pem"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        function_zip(ca)
    ca.write_text("no certificate")
    with pytest.raises(InvalidRequest, match="there is no certificate in it"):
        function_zip(ca)


def test_the_memory_of_code_is_that_of_the_function_but_for_the_runner() -> None:
    assert settings_of({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1024", "PATH": "x"}).udf.memory_mb == 832
    assert settings_of({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128"}).udf.memory_mb == 64


async def test_code_finds_neither_our_packages_nor_keys_nor_an_object_endpoint(system: RunnerSystem) -> None:
    async with lambda_of_the_runner() as server, on_lambda(system, server) as invoking:
        server.environment["AWS_ACCESS_KEY_ID"] = "of the function's role"
        ended = await invoking.call(system.python(LOOKS))
    assert "ValueError: finds [] [] False" in str(ended.error), ended


async def test_an_environment_serves_one_organisation_and_another_one_starts_for_the_next(system: RunnerSystem) -> None:
    other = await an_org(system.walk.control.pool, f"o{uuid4().hex[:8]}")
    await deployed_and_active(system.walk.control, other, DAG)
    async with lambda_of_the_runner() as server, on_lambda(system, server) as invoking:
        for org in (system.walk.org, other, system.walk.org):
            claimed = await system.claimed(org)
            assert await invoking.call(system.python(COMPLETES), claimed, org) == Invoked()
            assert await system.status(claimed.task.task_id) == "Completed"
    assert [environment.served for environment in server.environments] == [2, 1]
    assert [environment.tenant for environment in server.environments] == [str(system.walk.org.id), str(other.id)]


async def test_a_function_without_tenant_isolation_is_refused_by_the_runner(system: RunnerSystem) -> None:
    """The Dispatcher's setting is off by mistake, the function's is on."""
    async with lambda_of_the_runner() as server:
        server.per_tenant, server.environment = False, environment_of(system)
        ended = await called_without_tenants(system, server, await system.claimed())
    assert ended.started is False
    assert "PER_TENANT" in str(ended.error)


async def test_without_tenants_an_environment_refuses_another_organisation(system: RunnerSystem) -> None:
    other = await an_org(system.walk.control.pool, f"o{uuid4().hex[:8]}")
    await deployed_and_active(system.walk.control, other, DAG)
    async with lambda_of_the_runner() as server:
        server.per_tenant = False
        server.environment = {**environment_of(system), "TRACE_UDF__LAMBDA_TENANTS": "false"}
        ours = await called_without_tenants(system, server, await system.claimed())
        theirs = await called_without_tenants(system, server, await system.claimed(other))
    assert ours == Invoked()
    assert (theirs.started, theirs.busy) == (False, True)
    assert "another organisation" in str(theirs.error)


async def test_what_is_no_invocation_of_the_dispatcher_has_not_started(system: RunnerSystem) -> None:
    async with lambda_of_the_runner() as server, on_lambda(system, server) as invoking:
        for payload in (b"{}", b'{"task_id": 1}', b'"text"'):
            ended = await invoking.invoker.invoke(payload, org=system.walk.org.id, timeout_seconds=10)
            assert ended.started is False, ended
            assert "no invocation of the Dispatcher" in str(ended.error)
        ended = await invoking.call(system.python(COMPLETES), task_id=uuid4())
        assert "another attempt" in str(ended.error)


async def called_without_tenants(system: RunnerSystem, server: Any, claimed: Any) -> Invoked:
    invoker = LambdaInvoker(lambda_settings(server, lambda_tenants=False), calls=1)
    payload = msgspec.json.encode(invocation(claimed, system.python(COMPLETES)))
    try:
        return await invoker.invoke(payload, org=system.walk.org.id, timeout_seconds=60)
    finally:
        await invoker.close()
