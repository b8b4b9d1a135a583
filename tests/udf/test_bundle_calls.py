"""Bundles through the user API: announced, uploaded, checked; found by content, private to their organisation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.identity.service_tokens import as_service
from tests.support.systems.gateway import System, over
from tests.support.udf.bundles import BUNDLE, WRITER, announced, pushed, sha256, uploaded, zipped
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.domain.access.object_names import ObjectName
from tracelake.gateway.process import public_api
from tracelake.settings import BundleSettings
from tracelake.wire.client import DispatcherClient

pytestmark = pytest.mark.anyio
READER, RIVAL = "acme|reader", "rival|admin"
EVIL = zipped(("main.py", b"x = 1\n"), ("../evil.py", b"x"))


async def test_a_bundle_is_announced_uploaded_and_ready(trace: System) -> None:
    made = await trace.got(WRITER, "POST", "/v1/udf/bundles", json=announced(BUNDLE))
    assert (made["status"], made["upload"]["method"]) == ("Pending", "PUT")
    await trace.got(WRITER, "PUT", made["upload"]["path"], content=BUNDLE)
    done = await trace.got(WRITER, "POST", f"/v1/udf/bundles/{made['id']}/finalize")
    assert (done["status"], done["upload"], done["entry_points"]) == ("Ready", None, ["main"])
    (row,) = (await trace.got(READER, "GET", "/v1/udf/bundles"))["bundles"]
    expected = {"id": made["id"], "name": "detector", "kind": "python", "sha256": sha256(BUNDLE), "created_by": WRITER}
    assert row | expected == row
    assert (await trace.got(READER, "GET", f"/v1/udf/bundles/{made['id']}"))["entry_points"] == ["main"]


async def test_the_same_content_again_is_the_same_bundle_and_nothing_is_sent(trace: System) -> None:
    first, again = await pushed(trace), await pushed(trace)
    assert again == first
    assert (await trace.got(WRITER, "POST", "/v1/udf/bundles", json=announced(BUNDLE)))["upload"] is None
    assert await trace.control.pool.fetchval("SELECT count(*) FROM udf_bundles") == 1


async def test_pushed_by_many_at_once_or_again_after_a_crash_it_is_one_bundle_and_ready(trace: System) -> None:
    await uploaded(trace)  # and its caller died
    done = await asyncio.gather(*(pushed(trace) for _ in range(6)))
    assert {(outcome["id"], outcome["status"]) for outcome in done} == {(done[0]["id"], "Ready")}
    evil = await asyncio.gather(*(pushed(trace, EVIL) for _ in range(4)))
    assert {item["status"] for item in evil} <= {"Refused", "Pending"}  # announced anew while it was judged
    assert (await pushed(trace, EVIL))["status"] == "Refused"
    assert await trace.control.pool.fetchval("SELECT count(*) FROM udf_bundles") == 2


async def test_what_is_ready_keeps_its_name_and_kind(trace: System) -> None:
    await pushed(trace)
    for other in ({"name": "other"}, {"kind": "node"}):
        answer = await trace.ask(WRITER, "POST", "/v1/udf/bundles", json=announced(BUNDLE) | other)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        assert "detector" in answer.json()["error"]["message"]


async def test_a_hostile_zip_is_refused_with_the_entry_and_stays_refused(trace: System) -> None:
    done = await pushed(trace, EVIL)
    assert (done["status"], done["reason"]) == ("Refused", "the entry ../evil.py leads out of the bundle")
    again = await trace.got(WRITER, "POST", f"/v1/udf/bundles/{done['id']}/finalize")
    assert again == done


async def test_what_was_refused_for_its_kind_can_come_as_another(trace: System) -> None:
    script = zipped(("main.js", b"exports.handler = async () => null\n"))
    refused = await pushed(trace, script)
    assert refused["status"] == "Refused"
    assert ".py file" in refused["reason"]
    ready = await pushed(trace, script, kind="node")
    assert (ready["id"], ready["status"], ready["kind"]) == (refused["id"], "Ready", "node")


async def test_other_bytes_than_announced_never_get_in(trace: System) -> None:
    made = await trace.got(WRITER, "POST", "/v1/udf/bundles", json=announced(BUNDLE))
    swapped = BUNDLE[:-1] + bytes([BUNDLE[-1] ^ 1])
    for wrong in (b"", BUNDLE[:-1], BUNDLE + b"x", swapped):
        assert (await trace.ask(WRITER, "PUT", made["upload"]["path"], content=wrong)).status_code == 400
    finalize = f"/v1/udf/bundles/{made['id']}/finalize"
    assert await trace.refused(WRITER, "POST", finalize) == (409, "conflict")
    await trace.got(WRITER, "PUT", made["upload"]["path"], content=BUNDLE)
    assert (await trace.got(WRITER, "POST", finalize))["status"] == "Ready"


async def test_what_lies_in_the_store_is_judged_and_not_what_was_announced(trace: System) -> None:
    mine, other = (zipped(("main.py", code), method=0) for code in (b"x = 1", b"x = 2"))
    made = await uploaded(trace, mine)
    place = ObjectName.parse(
        await trace.control.pool.fetchval("SELECT location FROM udf_bundles WHERE id = $1::text::uuid", made["id"])
    )
    assert len(other) == len(mine)
    trace.control.objects.put(place, other, replace=True)
    done = await trace.got(WRITER, "POST", f"/v1/udf/bundles/{made['id']}/finalize")
    assert done["status"] == "Refused"
    assert (await pushed(trace, mine))["status"] == "Ready"


async def test_a_bundle_of_another_organisation_does_not_exist(trace: System) -> None:
    made = await uploaded(trace)
    path = f"/v1/udf/bundles/{made['id']}"
    for method, where in (("GET", path), ("POST", f"{path}/finalize"), ("PUT", f"{path}/content")):
        assert await trace.refused(RIVAL, method, where, content=BUNDLE if method == "PUT" else b"") == (
            404,
            "not_found",
        )
    assert (await trace.got(RIVAL, "GET", "/v1/udf/bundles"))["bundles"] == []
    theirs = await pushed(trace, user=RIVAL)
    assert (theirs["id"] != made["id"], theirs["status"]) == (True, "Ready")
    places = await trace.control.pool.fetch("SELECT DISTINCT location FROM udf_bundles")
    assert len(places) == 2


async def test_a_bundle_that_is_too_large_is_refused_before_and_while_it_is_sent(trace: System) -> None:
    small = replace(trace.control, bundles=BundleSettings(max_bytes=1024))
    archive = zipped(("main.py", bytes(range(256)) * 8), method=0)
    async with (
        over(internal_api(small), as_service("gateway")) as inside,
        over(public_api(DispatcherClient(inside), trace.identity)) as gateway,
    ):
        narrow = replace(trace, gateway=gateway)
        assert await narrow.refused(WRITER, "POST", "/v1/udf/bundles", json=announced(archive)) == (
            400,
            "invalid_request",
        )
        made = await trace.got(WRITER, "POST", "/v1/udf/bundles", json=announced(archive))
        answer = await narrow.ask(WRITER, "PUT", made["upload"]["path"], content=archive)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is larger than 1024 bytes")


MISTAKES: tuple[dict[str, Any], ...] = (
    {"name": "Detector"},
    {"name": "../x"},
    {"kind": "ruby"},
    {"sha256": "x" * 64},
    {"sha256": "A" * 64},
    {"size_bytes": 0},
    {"size_bytes": 2**40},
    {"org_id": "00000000-0000-0000-0000-000000000000"},
    {"location": "s3://elsewhere/x.zip"},
)


async def test_an_announcement_that_cannot_be_right_is_refused(trace: System) -> None:
    for wrong in MISTAKES:
        body = announced(BUNDLE) | wrong
        assert await trace.refused(WRITER, "POST", "/v1/udf/bundles", json=body) == (400, "invalid_request"), wrong


async def test_bundles_are_listed_in_pages_and_by_name(trace: System) -> None:
    for number in range(3):
        await uploaded(trace, zipped((f"m{number}.py", b"")), name=f"bundle_{number}")
    first = await trace.got(READER, "GET", "/v1/udf/bundles?limit=2")
    rest = await trace.got(READER, "GET", f"/v1/udf/bundles?limit=2&before={first['next']}")
    names = [row["name"] for row in first["bundles"] + rest["bundles"]]
    assert (names, rest["next"]) == (["bundle_2", "bundle_1", "bundle_0"], None)
    (row,) = (await trace.got(READER, "GET", "/v1/udf/bundles?name=bundle_1"))["bundles"]
    assert row["name"] == "bundle_1"
