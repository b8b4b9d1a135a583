"""Hostile code takes no more disk, memory, processes or time than its sandbox has, and disturbs no other."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.systems.runner import RunnerSystem
from tests.support.udf.hostile_runner import works

pytestmark = pytest.mark.anyio


async def test_it_fills_no_disk(system: RunnerSystem) -> None:
    answer = await system.run(
        system.python(
            """
            import errno
            def fill(folder):
                written = 0
                try:
                    for number in range(64):
                        with open(f"{folder}/{number}", "wb", buffering=0) as file:
                            for _ in range(8):
                                written += file.write(b"x" * (1 << 20))
                except OSError as full:
                    return written, errno.errorcode[full.errno]
                return written, "never full"
            def handler(event, context):
                return {folder: fill(folder) for folder in ("/tmp", "/dev/shm")}
            """
        )
    )
    assert not answer.failed, answer.body
    for written, why in answer.body.values():
        assert why in {"ENOSPC", "EFBIG"}
        assert written <= system.settings.udf.tmp_mb << 20


async def test_it_fills_no_table_of_inodes(either: RunnerSystem) -> None:
    """Empty files take no byte of /tmp's size, and a kilobyte of the kernel's memory each."""
    answer = await either.run(
        either.python(
            """
            import os
            def handler(event, context):
                for number in range(10**7):
                    os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
            """
        )
    )
    assert answer.failed
    assert answer.body["errorType"] == "Sandbox.OutOfBounds"
    assert f"more than {either.settings.udf.tmp_files} files in /tmp" in answer.body["errorMessage"]


async def test_what_an_attempt_writes_to_the_store_is_bounded_in_bytes_and_objects(system: RunnerSystem) -> None:
    """Of eight requests at once as of one after the other; what was refused is not there, and another attempt may."""
    udf = system.python(
        """
        import json, os
        from concurrent.futures import ThreadPoolExecutor
        from helpers import ask
        def handler(event, context):
            headers = {"X-Trace-Task-Capability": event["capability_token"]}
            dataset = event["outputs"][0]["dataset_uuid"]
            folder = f"/trace-scratch/buffers/{dataset}/{event['task_id']}/{event['attempt']}"
            def put(number, size):
                return ask(f"{os.environ['TRACE_OBJECTS_URL']}{folder}/{number}", "PUT", b"x" * size, headers)
            with ThreadPoolExecutor(8) as several:
                large = list(several.map(lambda number: put(number, 1 << 20), range(8)))
            same = [put(number, 1 << 20) for number, (status, _) in enumerate(large) if status == 200]
            small = [put(100 + number, 0) for number in range(20)]
            return {"large": large, "same": same, "small": small}
        """
    )
    for _ in range(2):  # the same sandbox, another attempt
        answer = await system.run(udf)
        assert not answer.failed, answer.body
        stored = [status for status, _ in answer.body["large"] if status == 200]
        refused = [json.loads(text)["error"] for status, text in answer.body["large"] if status != 200]
        assert len(stored) == system.settings.udf.put_mb
        assert {(item["code"], item["where"]) for item in refused} == {("limit_reached", "udf.put_mb")}
        assert [status for status, _ in answer.body["same"]] == [200] * len(stored), "said again, it costs nothing"
        small = [text for status, text in answer.body["small"] if status != 200]
        assert len(answer.body["small"]) - len(small) == system.settings.udf.put_objects - len(stored)
        assert {json.loads(text)["error"]["where"] for text in small} == {"udf.put_objects"}


async def test_a_fork_bomb_ends_with_its_sandbox(system: RunnerSystem) -> None:
    bomb = """
        import os
        def handler(event, context):
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
        """
    answer = await system.run(system.python(bomb), timeout_seconds=2)
    assert answer.failed
    await works(system)


async def test_it_gets_no_more_processes_than_it_may_have(system: RunnerSystem) -> None:
    answer = await system.run(
        system.python(
            """
            import os, time
            def handler(event, context):
                made = 0
                try:
                    for made in range(1000):
                        if os.fork() == 0:
                            time.sleep(60)
                            os._exit(0)
                except OSError:
                    pass
                return made
            """
        )
    )
    assert answer.body < system.settings.udf.processes


async def test_memory_has_an_end_in_one_process(system: RunnerSystem) -> None:
    bomb = """
        def handler(event, context):
            held = []
            while True:
                held.append(bytearray(1 << 20))
        """
    answer = await system.run(system.python(bomb))
    assert answer.failed
    assert "MemoryError" in str(answer.body) or "MiB of memory" in str(answer.body), answer.body
    await works(system)


async def test_memory_has_an_end_in_many_processes(system: RunnerSystem) -> None:
    bomb = """
        import os, time
        def handler(event, context):
            for _ in range(8):
                if os.fork() == 0:
                    held = bytearray(100 << 20)
                    time.sleep(3600)
            time.sleep(3600)
        """
    answer = await system.run(system.python(bomb))
    assert answer.failed
    assert "MiB of memory" in answer.body["errorMessage"]
    await works(system)


async def test_memory_has_an_end_in_node(system: RunnerSystem) -> None:
    bomb = "export const handler = async () => { const held = []; for (;;) held.push(Buffer.alloc(1 << 20, 1)); };"
    assert (await system.run(system.node(bomb))).failed
    await works(system)


async def test_spinning_ends_at_the_time_limit(system: RunnerSystem) -> None:
    spin = "def handler(event, context):\n    while True: pass\n"
    answer = await system.run(system.python(spin), timeout_seconds=1)
    assert answer.failed
    assert "timed out" in answer.body["errorMessage"]


async def test_a_million_lines_end_and_disturb_no_other_task(system: RunnerSystem) -> None:
    shout = "def handler(event, context):\n    for n in range(1_000_000): print('x' * 8)\n    return 'done'\n"
    shouting = asyncio.create_task(system.run(system.python(shout)))
    await works(system)
    answer = await shouting
    assert answer.body == "done"


async def test_a_line_without_an_end_is_no_harm(system: RunnerSystem) -> None:
    shout = "import sys\ndef handler(event, context):\n    sys.stdout.write('x' * 2_000_000)\n    return 'done'\n"
    assert (await system.run(system.python(shout))).body == "done"


async def test_a_huge_result_is_refused(system: RunnerSystem) -> None:
    answer = await system.run(system.python("def handler(event, context):\n    return 'x' * (7 << 20)\n"))
    assert answer.failed
    assert answer.body["errorType"] == "Function.ResponseSizeTooLarge"
