"""A job's bundle: what is checked at deploy, what a claim contains of it, and what its URL opens."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import claimed
from tests.support.systems.gateway import System, over
from tests.support.udf.bundles import BUNDLE, WRITER, dag, deployed, pushed, sha256, triggered, uploaded, zipped
from tests.support.verbs import activate_dag, deploy_dag
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.domain.access.object_names import Folder
from tracelake.errors import Forbidden
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.settings import TokenSettings
from tracelake.store.clock import DatabaseClock
from tracelake.store.signing_keys import published
from tracelake.wire.task.lifecycle import FireRef, UdfRef
from tracelake.wire.user.sources import FireRequest
from tracelake.wiring import s3_objects

pytestmark = pytest.mark.anyio
EVIL = zipped(("main.py", b""), ("../evil.py", b""))


async def bundle_of_claim(trace: System) -> UdfRef:
    """What a claim says of the job's bundle."""
    await pushed(trace)
    await deployed(trace, dag())
    found = (await claimed(trace.control, await triggered(trace)))[0].task.udf
    assert found is not None
    return found


@pytest.fixture
async def listener(trace: System) -> AsyncIterator[httpx.AsyncClient]:
    verifier = Verifier(lambda: published(trace.control.pool), TokenSettings(), clock=trace.control.clock)
    async with over(task_api(trace.control, verifier)) as client:
        yield client
    await verifier.close()


async def test_a_claim_contains_the_bundle_and_its_url_opens_it_without_a_token(
    trace: System, listener: httpx.AsyncClient
) -> None:
    udf = await bundle_of_claim(trace)
    assert msgspec.structs.replace(udf, url="") == UdfRef(
        bundle="detector",
        sha256=sha256(BUNDLE),
        kind="python",
        handler="main.handler",
        size_bytes=len(BUNDLE),
        url="",
    )
    answer = await listener.get(udf.url)
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, BUNDLE, "application/zip")


@pytest.mark.parametrize("runtime", ["ecs_udf", "lambda"])
async def test_a_function_can_be_a_source_and_is_called_with_what_fired_it(trace: System, runtime: str) -> None:
    await pushed(trace)
    udf = f'{{bundle: detector, sha256: "{sha256(BUNDLE)}", handler: main.handler}}'
    job = f"{{name: fetch, operator: udf, runtime: {runtime}, source: {{kind: manual}}, outputs: [rows], udf: {udf}}}"
    control = replace(trace.control, invokers=trace.control.invokers | {"function"})
    (row,) = await control.pool.fetch("SELECT org_id, id FROM users WHERE external_id = $1", WRITER)
    org, user = row
    done = await deploy_dag(control, org, user, f"name: watch\njobs: [{job}]\npublish: {{fetched: {{job: fetch}}}}\n")
    await activate_dag(control, org, done.dag_name, done.dag_version_id)
    fired = await control.fire_source().fire(org, "watch", "fetch", FireRequest(body={"since": 5}))
    assert fired.task_id is not None
    task = (await claimed(control, fired.task_id))[0].task
    assert task.udf is not None
    assert task.udf.handler == "main.handler"
    assert task.fired == FireRef(kind="manual", body={"since": 5})
    assert len(task.outputs) == 1


async def test_a_url_names_the_host_of_the_task_api(trace: System) -> None:
    here = replace(trace.control, task_url="https://tasks.example:8443/")
    url = await here.bundle_urls().url(uuid4(), "0" * 64, "s3://trace/bundles/x.zip")
    assert url.startswith(f"https://tasks.example:8443/v1/udf/bundle/{'0' * 64}?")


def changed(url: str, **other: str) -> str:
    split_url = urllib.parse.urlsplit(url)
    given = dict(urllib.parse.parse_qsl(split_url.query)) | other
    return f"{split_url.path}?{urllib.parse.urlencode({k: v for k, v in given.items() if v != 'GONE'})}"


async def test_a_url_opens_one_bundle_of_one_organisation_for_a_while_and_nothing_else(
    trace: System, listener: httpx.AsyncClient
) -> None:
    url = (await bundle_of_claim(trace)).url
    other = await pushed(trace, zipped(("main.py", b"other")), name="other")
    rival = await trace.control.pool.fetchval("SELECT id FROM orgs WHERE slug = 'rival'")
    await pushed(trace, user="rival|admin")
    signature = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["signature"][0]
    later = str(int(trace.control.clock()) + 10_000)
    hostile = {
        "another content": url.replace(sha256(BUNDLE), other["sha256"]),
        "another organisation": changed(url, org=str(rival)),
        "a later end": changed(url, expires=later),
        "an end in other digits": changed(url, expires="\u0661\u0662"),
        "no end": changed(url, expires="GONE"),
        "no signature": changed(url, signature="GONE"),
        "an empty signature": changed(url, signature=""),
        "another signature": changed(url, signature="0" * 64),
        "a signature in capitals": changed(url, signature=signature.upper()),
        "a signature cut short": changed(url, signature=signature[:-1]),
        "a signature that is no ASCII": changed(url, signature="\u00e9" * 64),
        "one parameter more": changed(url, location="s3://trace/x"),
        "a path in the hash": url.replace(sha256(BUNDLE), "..%2f" + sha256(BUNDLE)),
        "nothing": url.partition("?")[0],
    }
    for what, hostile_url in hostile.items():
        answer = await listener.get(hostile_url)
        assert answer.status_code in {403, 404}, (what, answer.text)
        assert BUNDLE not in answer.content


async def test_a_url_is_over_when_its_time_is(trace: System) -> None:
    await bundle_of_claim(trace)
    row = await trace.control.pool.fetchrow(
        "SELECT org_id, location FROM udf_bundles WHERE sha256 = $1", sha256(BUNDLE)
    )
    assert row is not None
    url = await trace.control.bundle_urls().url(row["org_id"], sha256(BUNDLE), row["location"])
    given = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    assert await trace.control.bundle_urls().read(sha256(BUNDLE), given) == BUNDLE
    in_time = int(given["expires"])

    def at(seconds: float) -> Control:
        return replace(trace.control, clock=cast("DatabaseClock", lambda: seconds))

    assert await at(in_time - 1).bundle_urls().read(sha256(BUNDLE), given) == BUNDLE
    with pytest.raises(Forbidden, match="has expired"):
        await at(in_time).bundle_urls().read(sha256(BUNDLE), given)


async def test_a_url_of_one_replica_holds_at_another_and_at_no_other_system(
    trace: System, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    url = (await bundle_of_claim(trace)).url
    given = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))
    async with control_for(state_db, queue_db, tmp_path, replica="two") as other:
        assert await other.bundle_urls().read(sha256(BUNDLE), given) == BUNDLE
        await other.pool.execute("UPDATE url_keys SET key = decode(repeat('00', 32), 'hex')")
    async with control_for(state_db, queue_db, tmp_path, replica="elsewhere") as elsewhere:
        with pytest.raises(Forbidden):
            await elsewhere.bundle_urls().read(sha256(BUNDLE), given)


async def test_a_job_without_a_bundle_costs_nothing_for_it(trace: System) -> None:
    await pushed(trace)
    await deployed(trace, dag())
    await triggered(trace)
    assert await trace.control.pool.fetchval("SELECT count(*) FROM url_keys") == 0


def test_a_store_that_signs_urls_opens_one_object_and_only_to_read(seaweedfs: SeaweedFS) -> None:
    objects = s3_objects(seaweedfs.objects_for("dispatcher"))
    folder = Folder.parse(f"s3://trace/bundles/{uuid4()}/")
    mine, other = folder.object("a.zip"), folder.object("b.zip")
    objects.put(mine, BUNDLE)
    objects.put(other, b"other")
    url = objects.signed_url(mine, 60)
    assert url is not None
    assert httpx.get(url).content == BUNDLE
    assert httpx.get(url.replace("a.zip", "b.zip")).status_code == 403
    assert httpx.put(url, content=b"evil").status_code == 403
    assert httpx.get(url.partition("?")[0]).status_code == 403
    assert objects.get(mine) == BUNDLE


REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "it does not exist": ({}, "jobs.detect.udf.sha256", "is ready"),
    "another name": ({"bundle": "scanner"}, "jobs.detect.udf.bundle", "is called 'detector', not 'scanner'"),
    "no such module": ({"handler": "app.handler"}, "jobs.detect.udf.handler", "no module 'app'"),
    "no function": ({"handler": "handler"}, "jobs.detect.udf.handler", "not of the form module.function"),
}


async def test_a_job_whose_bundle_cannot_be_run_is_not_deployed(trace: System) -> None:
    for other, where, output in REFUSALS.values():
        if other:
            await pushed(trace)
        answer = await trace.ask(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": dag(**other)})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["where"]) == (409, "conflict", where)
        assert output in error["message"]
        assert error["hint"]
    assert (await trace.got(WRITER, "GET", "/v1/dags"))["dags"] == []


async def test_a_bundle_that_was_not_judged_or_was_refused_is_not_deployed(trace: System) -> None:
    await uploaded(trace)
    await pushed(trace, EVIL)
    for archive, output in ((BUNDLE, "is ready"), (EVIL, "leads out of the bundle")):
        answer = await trace.ask(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": dag(archive)})
        assert (answer.status_code, output in answer.json()["error"]["message"]) == (409, True)


async def test_a_bundle_of_another_organisation_is_not_found(trace: System) -> None:
    await pushed(trace, user="rival|admin")
    answer = await trace.ask(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": dag()})
    assert answer.status_code == 409


MISTAKES = [
    (("runtime: ecs_udf", "runtime: ecs_platform"), "runtime_not_allowed"),
    (("runtime: ecs_udf", "runtime: ecs_platform"), "udf_on_trusted_runtime"),
    (("    udf: ", "    # udf: "), "missing"),
    (("operator: udf", "operator: sql"), "not_for_this"),
    (("    config: {limit", "    secrets: [key]\n    config: {limit"), "secrets_on_udf"),
    (("    config: {limit: 5, names: [a, b]}", "    config: 5"), "wrong_type"),
]


async def test_a_udf_job_that_is_written_wrongly_is_refused_at_its_place(trace: System) -> None:
    await pushed(trace)
    for change, code in MISTAKES:
        assert change[0] in dag()
        answer = await trace.ask(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": dag().replace(*change)})
        assert answer.status_code == 400
        assert code in {problem["code"] for problem in answer.json()["error"]["problems"]}


async def test_other_code_or_another_handler_is_another_generation(trace: System) -> None:
    changed_code = zipped(("main.py", b"x = 2\n"), ("app.py", b"y = 1\n"))
    await pushed(trace)
    await pushed(trace, changed_code)
    hashes = set()
    for text in (dag(), dag(changed_code), dag(changed_code, handler="app.handler")):
        done = await trace.got(WRITER, "POST", "/v1/dags/watch/versions", json={"yaml": text})
        sql = "SELECT config_hash FROM jobs WHERE name = 'detect' AND dag_version_id = $1::text::uuid"
        hashes.add(await trace.control.pool.fetchval(sql, done["dag_version_id"]))
    assert len(hashes) == 3
