"""Hostile code, each case as a real bundle in a real sandbox: it gets its task's listeners, and nothing else.

A case returns what it could reach; the test compares it with what it may reach.
"""

from __future__ import annotations

import json
import stat

import pytest

from tests.support.systems.runner import RunnerSystem
from tests.support.udf.bundles import zipped
from tests.support.udf.hostile_runner import SECRET
from tracelake.domain.access.object_names import ObjectName

pytestmark = pytest.mark.anyio


async def test_it_sees_no_process_but_its_own_and_no_environment_but_its_own(either: RunnerSystem) -> None:
    answer = await either.run(
        either.python(
            """
            import os
            def read(path):
                try:
                    return open(path, errors="replace").read()
                except OSError as refused:
                    return ""
            def handler(event, context):
                pids = [name for name in os.listdir("/proc") if name.isdigit()]
                texts = [read(f"/proc/{pid}/{what}") for pid in pids for what in ("environ", "cmdline", "maps")]
                return {"pids": len(pids), "text": "".join(texts), "environment": dict(os.environ)}
            """
        )
    )
    assert answer.body["pids"] <= 4  # bubblewrap, the init, the function
    output = json.dumps(answer.body)
    assert SECRET not in output
    assert "TRACE_TEST_SECRET" not in output
    assert str(either.settings.home) not in output
    assert {name for name in answer.body["environment"] if name.startswith("TRACE_")} == {
        "TRACE_TASK_URL",
        "TRACE_QUERY_URL",
        "TRACE_OBJECTS_URL",
    }


async def test_it_runs_as_an_unprivileged_user(either: RunnerSystem) -> None:
    answer = await either.run(
        either.python(
            """
            import os, subprocess
            def handler(event, context):
                lines = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
                shadow = subprocess.run(["su", "-c", "id -u", "root"], capture_output=True, text=True,
                                        stdin=subprocess.DEVNULL).stdout
                return {"uid": os.getuid(), "groups": os.getgroups(), "root": shadow, **lines}
            """
        )
    )
    body = answer.body
    assert body["uid"] != 0
    assert body["root"] == ""
    assert {body[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} <= {"0000000000000000", "00000000000000c0"}
    assert {body[name] for name in ("CapPrm", "CapEff", "CapAmb")} == {"0000000000000000"}
    assert (body["NoNewPrivs"], body["Seccomp"]) == ("1", "2")


async def test_it_finds_neither_other_bundles_nor_the_store_nor_our_home(either: RunnerSystem) -> None:
    name = ObjectName.parse("s3://trace/datasets/x/y/precious.parquet")
    either.walk.control.objects.put(name, b"rows")
    (either.settings.home / "precious.key").write_text("key")
    await either.run(either.python("def handler(event, context): return 1  # another bundle\n"))
    answer = await either.run(
        either.python(
            """
            import os
            SKIPPED = {"/proc", "/usr", "/sys"}
            def handler(event, context):
                found = []
                for folder, folders, names in os.walk("/"):
                    folders[:] = [one for one in folders if os.path.join(folder, one) not in SKIPPED]
                    if "python3" in folder:
                        continue
                    found += [os.path.join(folder, one) for one in names]
                return found
            """
        )
    )
    found = answer.body
    assert not [path for path in found if "precious" in path]
    assert sorted(path for path in found if path.startswith("/var")) == ["/var/task/helpers.py", "/var/task/main.py"]
    assert not [
        path for path in found if str(either.settings.home) in path or path.startswith(("/home", "/work", "/srv"))
    ]
    assert {path for path in found if path.startswith("/etc/") and "alternatives" not in path} <= {
        f"/etc/{name}" for name in ("passwd", "group", "hosts", "nsswitch.conf", "timezone", "ld.so.cache")
    }


async def test_what_one_sandbox_wrote_is_not_there_for_another(system: RunnerSystem) -> None:
    await system.run(system.python("def handler(event, context): open('/tmp/left', 'w').write('x')\n"))
    looking = "import os\ndef handler(event, context): return os.listdir('/tmp')\n"
    assert (await system.run(system.python(looking))).body == []


async def test_it_can_write_nowhere_but_its_tmp(either: RunnerSystem) -> None:
    answer = await either.run(
        either.python(
            """
            import os
            def handler(event, context):
                written = []
                for folder, folders, _ in os.walk("/"):
                    if folder.startswith("/proc") or folder.count("/") > 3:
                        folders.clear()
                        continue
                    try:
                        open(os.path.join(folder, "x"), "w").close()
                        written.append(folder)
                    except OSError:
                        pass
                for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/var/task/main.py"):
                    try:
                        open(path, "w").write("x")
                        written.append(path)
                    except OSError:
                        pass
                return written
            """
        )
    )
    assert set(answer.body) <= {"/tmp", "/dev/shm"}  # noqa: S108 - its own


async def test_a_token_that_it_prints_or_fails_with_is_not_kept(
    system: RunnerSystem, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was given the token, and can print it; readers of logs and errors were not."""
    claimed = await system.claimed()
    udf = system.python(
        """
        from helpers import task
        def handler(event, context):
            token = event["capability_token"]
            print("my token:", token, "and that was it", flush=True)
            line = {"at": "2026-01-01T00:00:00Z", "text": f"token={token}"}
            return task(event, "logs", lines=[line], first=500)
        """
    )
    answer = await system.run(udf, claimed)  # answered when its lines are stored
    assert answer.body[0] == 200, answer.body
    failing = system.python(
        """
        from helpers import task
        def handler(event, context):
            said = f"no luck with {event['capability_token']}!"
            return task(event, "complete", status="Failed", error_message=said, retryable=False)
        """
    )
    assert (await system.run(failing, claimed)).body[0] == 200
    pool, token = system.walk.control.pool, claimed.capability_token
    stored_lines = "SELECT string_agg(text, E'\\n' ORDER BY n) FROM task_logs WHERE task_id = $1"
    lines = await pool.fetchval(stored_lines, claimed.task.task_id)
    assert "my token: *** and that was it" in lines
    assert "token=***" in lines
    rows = await pool.fetch(
        "SELECT t::text FROM tasks t WHERE id = $1 UNION ALL SELECT a::text FROM task_attempts a WHERE task_id = $1",
        claimed.task.task_id,
    )
    output = lines + "".join(row[0] for row in rows) + "".join(capfd.readouterr())
    assert "no luck with ***!" in output
    assert token not in output
    assert token.rpartition(".")[2] not in output


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py", "a\\..\\evil.py"])
async def test_a_bundle_with_a_name_that_leads_out_is_not_unpacked(system: RunnerSystem, name: str) -> None:
    archive = zipped(("main.py", b"def handler(event, context): return 1\n"), (name, b"evil"))
    answer = await system.run(system.bundles.put(archive, "python", "main.handler"))
    assert (answer.failed, answer.body["errorType"]) == (True, "Trace.invalid_bundle")
    assert not list(system.settings.home.rglob("evil.py"))


async def test_a_bundle_with_a_link_or_a_bomb_is_not_unpacked(system: RunnerSystem) -> None:
    link = zipped(("main.py", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777)
    bomb = zipped(("main.py", b"\0" * (64 << 20)))
    for archive in (link, bomb):
        answer = await system.run(system.bundles.put(archive, "python", "main.handler"))
        assert (answer.failed, answer.body["errorType"]) == (True, "Trace.invalid_bundle")
