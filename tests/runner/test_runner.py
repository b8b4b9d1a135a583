"""The runner's listener: the same bundle that Lambda would run, in a sandbox, with the listeners of its task."""

from __future__ import annotations

import asyncio
from uuid import UUID

import httpx
import msgspec
import pytest

from tests.support.dispatcher.control import an_org, deployed_and_active
from tests.support.systems.runner import DAG, INVOKE_TOKEN, RunnerSystem, invocation
from tests.support.waiting import SECONDS, until
from tracelake.sandbox.process import runs
from tracelake.udf.process import PATH, PLACES

pytestmark = pytest.mark.anyio

ECHO = """
def handler(event, context):
    left = context.get_remaining_time_in_millis()
    return {"task": event["task_id"], "left": left, "request": context.aws_request_id}
"""
COUNT = """
import os
calls = 0
def handler(event, context):
    global calls
    calls += 1
    return [calls, os.getpid()]
"""


async def test_a_python_function_is_run_with_its_task(system: RunnerSystem) -> None:
    claimed = await system.claimed()
    answer = await system.run(system.python(ECHO), claimed)
    assert answer.status == 200, answer
    assert not answer.failed, answer.body
    assert answer.body["task"] == str(claimed.task.task_id)
    assert 0 < answer.body["left"] <= 2_000_000
    UUID(answer.body["request"])


async def test_a_node_function_is_run_with_its_task(system: RunnerSystem) -> None:
    claimed = await system.claimed()
    udf = system.node(
        """
        export async function handler(event, context) {
          const url = process.env.TRACE_TASK_URL + "/v1/task/complete";
          const fence = { task_id: event.task_id, attempt: event.attempt, lease_token: event.lease_token };
          const headers = { "X-Trace-Task-Capability": event.capability_token, "content-type": "application/json" };
          const body = JSON.stringify({ ...fence, status: "Completed" });
          const answer = await fetch(url, { method: "POST", headers, body });
          return { status: answer.status, left: context.getRemainingTimeInMillis() > 0 };
        }
        """
    )
    answer = await system.run(udf, claimed)
    assert (answer.body, answer.failed) == ({"status": 200, "left": True}, False)
    assert await system.status(claimed.task.task_id) == "Completed"


async def test_node_takes_common_js_and_callbacks(system: RunnerSystem) -> None:
    udf = system.node("exports.handler = (event, context, done) => done(null, event.attempt);", "main.cjs")
    assert (await system.run(udf)).body == 1


async def test_an_executable_named_bootstrap_is_run_as_it_is(system: RunnerSystem) -> None:
    udf = system.executable(
        """
        #!/bin/sh
        api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
        while true; do
          python3 - "$api" <<'END'
        import sys, urllib.request
        api = sys.argv[1]
        with urllib.request.urlopen(api + "/next") as task:
            id = task.headers["Lambda-Runtime-Aws-Request-Id"]
            task.read()
        urllib.request.urlopen(api + "/" + id + "/response", data=b'"from a shell"').read()
        END
        done
        """
    )
    answer = await system.run(udf)
    assert answer.body == "from a shell", answer


async def test_a_function_completes_its_own_task(system: RunnerSystem) -> None:
    claimed = await system.claimed()
    answer = await system.run(
        system.python("from helpers import *\ndef handler(event, context):\n    return complete(event)[0]\n"), claimed
    )
    assert answer.body == 200
    assert await system.status(claimed.task.task_id) == "Completed"


async def test_the_location_of_a_bundle_is_not_given_to_it(system: RunnerSystem) -> None:
    answer = await system.run(system.python("def handler(event, context):\n    return event\n"))
    assert "bundle_url" not in answer.body
    assert "url" not in answer.body["udf"]
    assert system.bundles.url not in str(answer.body)


async def test_a_warm_sandbox_serves_the_next_task_of_the_same_code(system: RunnerSystem) -> None:
    udf = system.python(COUNT)
    first, second = (await system.run(udf)).body, (await system.run(udf)).body
    assert (first[0], second[0]) == (1, 2)


async def test_no_sandbox_serves_two_organisations(system: RunnerSystem) -> None:
    other = await an_org(system.walk.control.pool, "other")
    await deployed_and_active(system.walk.control, other, DAG.replace("name: code", "name: code"))
    udf = system.python(COUNT + "# shared by two\n")
    ours = (await system.run(udf)).body
    theirs = (await system.run(udf, await system.claimed(other))).body
    assert (ours[0], theirs[0]) == (1, 1)


async def test_an_error_of_the_function_is_reported_as_by_lambda(system: RunnerSystem) -> None:
    answer = await system.run(system.python("def handler(event, context):\n    raise ValueError('what it said')\n"))
    assert (answer.status, answer.failed) == (200, True)
    assert (answer.body["errorType"], answer.body["errorMessage"]) == ("ValueError", "what it said")


async def test_code_that_cannot_be_loaded_says_why(system: RunnerSystem) -> None:
    answer = await system.run(system.python("import no_such_module\n"))
    assert answer.failed
    assert "no_such_module" in answer.body["errorMessage"]


async def test_a_function_is_ended_at_its_time_limit(system: RunnerSystem) -> None:
    udf = system.python("import time\ndef handler(event, context):\n    time.sleep(3600)\n")
    answer = await system.run(udf, timeout_seconds=1)
    assert answer.failed
    assert "timed out" in answer.body["errorMessage"]


async def test_the_listener_needs_the_dispatchers_token(system: RunnerSystem) -> None:
    udf = system.python(ECHO)
    for token in ("", "wrong", system.settings.identity.service_token.get_secret_value()):  # type: ignore[union-attr]
        answer = await system.run(udf, token=token or "x")
        assert (answer.status, answer.body["error"]["code"]) == (401, "unauthenticated")


async def test_the_runner_says_how_many_places_it_has_to_the_dispatcher_alone(system: RunnerSystem) -> None:
    udf = system.settings.udf
    answer = await system.http.get(PLACES, headers={"Authorization": f"Bearer {INVOKE_TOKEN}"})
    assert answer.json() == {"total": udf.sandboxes, "per_org": udf.per_org}
    assert (await system.http.get(PLACES, headers={"Authorization": "Bearer another"})).status_code == 401


async def test_a_bundle_with_another_hash_is_not_run(system: RunnerSystem) -> None:
    udf = system.python(ECHO + "# with another hash\n")
    archive = system.bundles.archives[udf.sha256]
    for lie in (archive + b"x", archive[:-1], archive[:-1] + b"x"):
        system.bundles.archives[udf.sha256] = lie
        answer = await system.run(udf)
        assert answer.failed, answer
        assert "bundle" in answer.body["errorMessage"]
    system.bundles.archives[udf.sha256] = archive
    assert not (await system.run(udf)).failed


async def test_a_token_of_another_attempt_is_refused(system: RunnerSystem) -> None:
    claimed, other = await system.claimed(), await system.claimed()
    answer = await system.run(system.python(ECHO), claimed, capability_token=other.capability_token)
    assert (answer.failed, answer.body["errorType"]) == (True, "Trace.forbidden")


async def test_a_caller_that_hangs_up_ends_the_function(system: RunnerSystem) -> None:
    """Its caller is gone, so it is ended at once, as the end of its process shows."""
    udf = system.python(
        """
        import time
        from helpers import *
        def handler(event, context):
            while True:
                task(event, "heartbeat", progress={"message": str(time.time())})
                time.sleep(0.05)
        """
    )
    claimed = await system.claimed()
    body = msgspec.json.encode(invocation(claimed, udf))
    call = asyncio.create_task(
        system.http.post(PATH, content=body, headers={"authorization": f"Bearer {INVOKE_TOKEN}"})
    )
    heard = "SELECT progress IS NOT NULL FROM tasks WHERE id = $1"
    async with asyncio.timeout(SECONDS):
        await until(
            lambda: system.walk.control.pool.fetchval(heard, claimed.task.task_id), "the task has reported progress"
        )
        (host,) = [host for host in system.functions.pool._busy if host.key.sha256 == udf.sha256]
        first = host._sandbox._first  # type: ignore[union-attr]
        call.cancel()
        await until(lambda: not runs(first), "the sandbox has ended")


async def test_a_burst_waits_shortly_and_is_then_answered_429(system: RunnerSystem) -> None:
    udf = system.python("import time\ndef handler(event, context):\n    time.sleep(3600)\n# of a burst\n")
    tasks = [await system.claimed() for _ in range(system.settings.udf.per_org + 1)]
    calls = [asyncio.create_task(system.run(udf, claimed)) for claimed in tasks]
    refused, running = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [item.result().status for item in refused] == [429]
    for item in running:  # a caller that hangs up ends its function
        item.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await settled(system)


async def test_a_thread_that_outlives_its_invocation_does_not_see_the_next_task(system: RunnerSystem) -> None:
    udf = system.python(
        """
        import threading, time
        seen = []
        def handler(event, context):
            seen.append(event["task_id"])
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
            return seen
        """
    )
    await system.run(udf)
    await settled(system)
    assert len((await system.run(udf)).body) == 1


async def test_a_process_that_outlives_its_invocation_does_not_see_the_next_task(system: RunnerSystem) -> None:
    udf = system.python(
        """
        import subprocess
        seen = []
        def handler(event, context):
            seen.append(event["task_id"])
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
            return seen
        """
    )
    await system.run(udf)
    await settled(system)
    assert len((await system.run(udf)).body) == 1


async def test_a_timer_of_node_that_outlives_its_invocation_does_not_see_the_next_task(system: RunnerSystem) -> None:
    udf = system.node(
        "let seen = 0; export const handler = async () => { setInterval(() => {}, 1000); return ++seen; };"
    )
    await system.run(udf)
    await settled(system)
    assert (await system.run(udf)).body == 1


async def test_a_warm_node_serves_the_next_task(system: RunnerSystem) -> None:
    udf = system.node("let seen = 0; export const handler = async () => ++seen;")
    await system.run(udf)
    await settled(system)
    assert (await system.run(udf)).body == 2


async def test_a_hung_up_body_is_no_invocation(system: RunnerSystem) -> None:
    answer = await system.http.post(PATH, content=b"{", headers={"authorization": f"Bearer {INVOKE_TOKEN}"})
    assert answer.status_code == httpx.codes.BAD_REQUEST


async def settled(system: RunnerSystem) -> None:
    """Until no sandbox is lent, or on its way back."""
    pool = system.functions.pool
    await until(lambda: not (pool._busy or pool._background), "every sandbox is back in the pool")
