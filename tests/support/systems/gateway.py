"""The Gateway and the Dispatcher's internal API, connected to each other in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import drained
from tests.support.identity.service_tokens import TOKENS, AnyService, store_service_tokens
from tests.support.operators import registered
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.domain.access.seal import Seal
from tracelake.domain.dag.catalog import OperatorSpec
from tracelake.gateway.process import public_api
from tracelake.lite.home import public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings
from tracelake.wire.client import DispatcherClient

READER, WRITER, ADMIN, RIVAL = "acme|reader", "acme|writer", "acme|admin", "rival|admin"
DAG = """\
name: shop
defaults: {runtime: dispatcher}
jobs:
  - name: fetch
    operator: noop
    source: {kind: manual}
  - name: clean
    operator: work
    inputs: [{from: {job: fetch}}]
    runtime: ecs_platform
publish:
  shop_orders: {job: fetch}
  shop_clean: {job: clean}
"""


def workers() -> AbstractContextManager[None]:
    """Operator `work` is known, and no worker runs it: its tasks stay as a test leaves them."""
    return registered(work=OperatorSpec(lambda config: [], frozenset({"ecs_platform"})))  # noqa: ARG005


@dataclass(frozen=True)
class System:
    control: Control
    key: ec.EllipticCurvePrivateKey
    identity: IdentitySettings
    gateway: httpx.AsyncClient
    internal: httpx.AsyncClient
    """A client of the internal API without credentials."""
    inside: httpx.AsyncClient
    """The same with the Gateway's credentials."""

    def token(self, subject: str) -> str:
        return mint_user_token(self.key, self.identity, subject)

    async def ask(self, user: str | None, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token(user)}"} if user else {}
        return await self.gateway.request(method, path, headers=headers | more.pop("headers", {}), **more)

    async def got(self, user: str, method: str, path: str, **more: Any) -> Any:
        answer = await self.ask(user, method, path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def deploy(self, dag: str, text: str, user: str = "acme|writer") -> str:
        """The id of the new active version."""
        done = await self.got(user, "POST", f"/v1/dags/{dag}/versions", json={"yaml": text})
        await self.got(user, "PUT", f"/v1/dags/{dag}/active", json={"dag_version_id": done["dag_version_id"]})
        return str(done["dag_version_id"])

    async def refused(self, user: str | None, method: str, path: str, **more: Any) -> tuple[int, str]:
        answer = await self.ask(user, method, path, **more)
        return answer.status_code, answer.json()["error"]["code"]


@asynccontextmanager
async def system(state_dsn: str, queue_dsn: str, folder: Path, seal: Seal | None = None) -> AsyncIterator[System]:
    """Organisations `acme` and `rival`, each with a reader, a writer and an admin: `acme|reader`, ..."""
    key = ec.generate_private_key(ec.SECP256R1())
    identity = IdentitySettings(user_public_key=public_pem(key), service_token=SecretStr(TOKENS["gateway"]))
    async with control_for(state_dsn, queue_dsn, folder, seal=seal) as control:
        await people(control)
        async with connected(control, key, identity) as made:
            yield made


@asynccontextmanager
async def connected(
    control: Control, key: ec.EllipticCurvePrivateKey, identity: IdentitySettings
) -> AsyncIterator[System]:
    """A Gateway and an internal API of this Control."""
    async with (
        over(internal_api(control), auth=AnyService()) as inside,
        over(public_api(DispatcherClient(inside), identity)) as gateway,
        over(internal_api(control)) as internal,
    ):
        with workers():
            yield System(control, key, identity, gateway, internal, inside)


async def people(control: Control) -> None:
    await store_service_tokens(control.pool)
    for slug in ("acme", "rival"):
        org: UUID = await control.pool.fetchval("INSERT INTO orgs (name, slug) VALUES ($1, $1) RETURNING id", slug)
        for role in ("reader", "writer", "admin"):
            await control.pool.execute(
                "INSERT INTO users (org_id, external_id, role) VALUES ($1, $2, $3::text::platform_role)",
                org,
                f"{slug}|{role}",
                role,
            )


def over(app: Any, headers: dict[str, str] | None = None, auth: httpx.Auth | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="https://test", headers=headers, auth=auth)


async def deployed(trace: System) -> str:
    """The DAG `shop`, active; its version."""
    done = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", content=DAG, headers={"content-type": "text/yaml"})
    version: str = done["dag_version_id"]
    await trace.got(WRITER, "PUT", "/v1/dags/shop/active", json={"dag_version_id": version})
    return version


async def triggered(trace: System) -> str:
    """A task of `clean`, by way of the manual source."""
    await trace.got(WRITER, "POST", "/v1/dags/shop/jobs/fetch/trigger", json={"start": 0, "end": 9})
    await drained(trace.control)
    (task,) = (await trace.got(READER, "GET", "/v1/tasks"))["tasks"]
    found: str = task["id"]
    return found
