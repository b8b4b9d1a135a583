"""Where a bundle may be fetched from: addresses of the machine's authorities (S3), and of ours (the task API)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web

from tests.support.operators import registered
from tests.support.systems.invokers import Invoking, lambda_of_the_runner, on_lambda, on_runner
from tests.support.systems.runner import HANDS, running_system
from tracelake.lite.certificates import ensure_certificates
from tracelake.ports import Invoked
from tracelake.runtime.tls import TlsFiles, server_context
from tracelake.store.migrate import Database
from tracelake.wire.task.lifecycle import UdfRef

pytestmark = pytest.mark.anyio

COMPLETES = """
    from helpers import complete
    def handler(event, context):
        return complete(event)
    """


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TlsFiles:
    """Of an authority that this machine trusts, as it does that of AWS."""
    files = ensure_certificates(tmp_path / "public", datetime.now(UTC))
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return files


@pytest.fixture(params=["runner", "lambda"])
async def invoking(
    request: pytest.FixtureRequest, clone: Callable[[Database], str], tmp_path: Path, public: TlsFiles
) -> AsyncIterator[Invoking]:
    dsns = {"state": clone("state"), "queue": clone("queue")}
    with registered(hands=HANDS):
        async with running_system(dsns, tmp_path / "system", memory_mb=256) as system:
            if request.param == "runner":
                async with on_runner(system) as made:
                    yield made
                return
            async with lambda_of_the_runner() as server, on_lambda(system, server) as made:
                server.environment["SSL_CERT_FILE"] = str(public.ca)
                yield made


async def test_a_bundle_is_fetched_from_an_address_of_a_public_authority_and_from_one_of_ours(
    invoking: Invoking, public: TlsFiles, tmp_path: Path
) -> None:
    for files in (public, ensure_certificates(tmp_path / "system" / "tls", datetime.now(UTC))):
        claimed = await invoking.system.claimed()
        async with served(invoking, files) as udf:
            assert await invoking.call(udf, claimed) == Invoked()
        assert await invoking.system.status(claimed.task.task_id) == "Completed"


async def test_a_bundle_is_not_fetched_from_an_address_of_another_authority(invoking: Invoking, tmp_path: Path) -> None:
    async with served(invoking, ensure_certificates(tmp_path / "other", datetime.now(UTC))) as udf:
        ended = await invoking.call(udf)
    assert ended.started is False
    assert "CERTIFICATE_VERIFY_FAILED" in str(ended.error)


@asynccontextmanager
async def served(invoking: Invoking, files: TlsFiles) -> AsyncIterator[UdfRef]:
    """A bundle that no runner has fetched yet, at a server with this certificate."""
    udf = invoking.system.python(f"{COMPLETES}\n    # {uuid4()}")

    async def give(_: web.Request) -> web.Response:
        return web.Response(body=invoking.system.bundles.archives[udf.sha256])

    app = web.Application()
    app.router.add_get("/{sha}", give)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(files)).start()
    try:
        yield UdfRef(**{name: getattr(udf, name) for name in udf.__struct_fields__ if name != "url"}, url=_url(runner))
    finally:
        await runner.cleanup()


def _url(runner: web.AppRunner) -> str:
    return f"https://127.0.0.1:{runner.addresses[0][1]}/bundle"
