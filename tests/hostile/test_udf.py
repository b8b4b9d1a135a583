"""Hostile code, each case as a real bundle in a real sandbox: it gets its task's listeners, and nothing else.

A case returns what it could reach; the test compares it with what it may reach.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.cases.hostile_storage import ESCAPES
from tests.support.identity.service_tokens import TOKENS
from tests.support.operators import registered
from tests.support.postgres import RunningServer
from tests.support.systems.runner import HANDS, RunnerSystem, running_system
from tests.support.udf.bundles import zipped
from tests.support.waiting import until
from tracelake.domain.access.object_names import ObjectName
from tracelake.sandbox.bubblewrap import Isolation, bwraps
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio

SECRET = "a secret of the runner"
BOUNDS: dict[str, Any] = {
    "memory_mb": 192,
    "tmp_mb": 8,
    "tmp_files": 2_000,
    "put_mb": 4,
    "put_objects": 16,
    "processes": 32,
    "open_files": 128,
}
NAMES: tuple[Database, ...] = ("state", "queue")


@pytest.fixture(scope="module")
async def system(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunnerSystem]:
    async with runner_system(postgres, template, tmp_path_factory.mktemp("hostile"), None) as made:
        yield made


@pytest.fixture(scope="module")
async def anybodys(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunnerSystem]:
    """Isolation as any user can build it. If we are root, it is weaker here than in truth: uid 0 stands behind it."""
    async with runner_system(postgres, template, tmp_path_factory.mktemp("any_user"), Isolation(bwraps()[0])) as made:
        yield made


@pytest.fixture(params=["system", "anybodys"])
def either(request: pytest.FixtureRequest) -> RunnerSystem:
    found: RunnerSystem = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def runner_system(
    postgres: RunningServer, template: Callable[[Database], str], folder: Path, isolation: Isolation | None
) -> AsyncIterator[RunnerSystem]:
    dsns: dict[str, str] = {
        name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in NAMES
    }
    os.environ["TRACE_TEST_SECRET"] = SECRET
    try:
        with registered(hands=HANDS):
            async with running_system(dsns, folder, isolation, **BOUNDS) as made:
                yield made
    finally:
        os.environ.pop("TRACE_TEST_SECRET", None)


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


async def test_it_opens_no_socket_but_those_of_its_task(either: RunnerSystem) -> None:
    abstract, name = socket.socket(socket.AF_UNIX), f"trace-hostile-{uuid4()}"
    abstract.bind(f"\0{name}")
    abstract.listen()
    ports = [
        int(url.rpartition(":")[2]) for url in (*either.walk.listeners.values(), str(either.http.base_url).rstrip("/"))
    ]
    udf = either.python(
        """
        import errno, socket
        def tried(make):
            try:
                make()
                return "open"
            except OSError as refused:
                return errno.errorcode.get(refused.errno, str(refused))
        def connect(family, address, kind=socket.SOCK_STREAM):
            def make():
                with socket.socket(family, kind) as one:
                    one.settimeout(5)
                    one.connect(address)
            return make
        def handler(event, context):
            ports = PORTS
            inet, inet6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
            return {
                **{f"port {port}": tried(connect(inet, ("127.0.0.1", port))) for port in ports},
                "ssh": tried(connect(inet, ("127.0.0.1", 22))),
                "internet": tried(connect(inet, ("1.1.1.1", 53))),
                "internet 6": tried(connect(inet6, ("2606:4700:4700::1111", 53))),
                "metadata": tried(connect(inet, ("169.254.169.254", 80))),
                "udp": tried(lambda: socket.socket(inet, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53))),
                "abstract": tried(connect(unix, "\\0NAME")),
                "bus": tried(connect(unix, "/run/dbus/system_bus_socket")),
                "raw": tried(lambda: socket.socket(inet, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
                "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
                "netlink": tried(lambda: socket.socket(16, socket.SOCK_RAW)),
                "vsock": tried(lambda: socket.socket(40, socket.SOCK_STREAM)),
                "alg": tried(lambda: socket.socket(38, socket.SOCK_SEQPACKET)),
                "names": tried(lambda: socket.getaddrinfo("example.com", 443)),
            }
        """.replace("PORTS", repr(ports)).replace("NAME", name)
    )
    with abstract:
        answer = await either.run(udf)
    assert not answer.failed, answer.body
    assert "open" not in answer.body.values(), answer.body
    assert {answer.body[item] for item in ("packet", "netlink", "vsock", "alg")} <= {"EAFNOSUPPORT", "EPERM"}


async def test_nothing_internal_can_be_reached_through_its_listeners(system: RunnerSystem) -> None:
    """Not even with a worker token: the path does not exist for it."""
    answer = await system.run(
        system.python(
            """
            import http.client, os
            PATHS = ["/internal/jwks/task", "/internal/task-claim", "/internal/v1/dags", "/internal/openapi.json",
                "/metrics", "/healthz", "/readyz", "/", "/v1/task/../../internal/jwks/task",
                "/v1/task/..%2f..%2finternal/jwks/task", "/v1/task/%2e%2e/%2e%2e/internal/jwks/task",
                "//internal/jwks/task", "/v1/task/heartbeat/../../../internal/jwks/task",
                "/v1/task/;/internal/jwks/task", "/v1/task/heartbeat?x=/internal", "/v1/query", "/v1/tasks",
                "http://127.0.0.1/internal/jwks/task", "/v1/task/heartbeat#/internal"]
            def handler(event, context):
                got = {}
                for variable in ("TRACE_TASK_URL", "TRACE_QUERY_URL"):
                    host = os.environ[variable].removeprefix("http://")
                    for path in PATHS:
                        for method in ("GET", "POST"):
                            line = http.client.HTTPConnection(host, timeout=20)
                            line.request(method, path, b"{}" if method == "POST" else None,
                                         {"X-Trace-Worker-Token": "TOKEN", "X-Trace-User": "admin"})
                            got[f"{variable} {method} {path}"] = line.getresponse().status
                return got
            """.replace("TOKEN", TOKENS["worker"])
        )
    )
    assert not answer.failed, answer.body
    assert set(answer.body.values()) <= {400, 404}, answer.body


async def test_a_request_in_a_request_is_not_passed_on(system: RunnerSystem) -> None:
    answer = await system.run(
        system.python(
            """
            import os, socket
            TOKEN = b"X-Trace-Worker-Token: a token of the worker\\r\\n"
            INNER = b"GET /internal/jwks/task HTTP/1.1\\r\\nHost: x\\r\\n" + TOKEN + b"\\r\\n"
            def said(head, body):
                host, port = os.environ["TRACE_TASK_URL"].removeprefix("http://").split(":")
                with socket.create_connection((host, int(port)), timeout=5) as line:
                    line.sendall(b"POST /v1/task/heartbeat HTTP/1.1\\r\\nHost: x\\r\\n" + head + b"\\r\\n" + body)
                    line.shutdown(socket.SHUT_WR)
                    got = b""
                    try:
                        while more := line.recv(65536):
                            got += more
                    except OSError:
                        pass
                return got.decode(errors="replace")
            def handler(event, context):
                return [
                    said(b"Content-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n", b"0\\r\\n\\r\\n" + INNER),
                    said(b"Content-Length: 0\\r\\nContent-Length: 100\\r\\n", INNER),
                    said(b"Transfer-Encoding: xchunked\\r\\n", b"0\\r\\n\\r\\n" + INNER),
                    said(b"Content-Length: 2\\r\\n", b"{}" + INNER),
                    said(b"X: a\\r\\n b\\r\\nContent-Length: 2\\r\\n", b"{}" + INNER),
                ]
            """
        )
    )
    assert not answer.failed, answer.body
    assert not [text for text in answer.body if "200 OK" in text or '"keys"' in text], answer.body


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


TALKER = """
#!/usr/bin/env python3
import os, urllib.request, urllib.error, time
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/"
def post(path, data):
    try:
        return urllib.request.urlopen(api + path, data=data, timeout=20).status
    except urllib.error.HTTPError as refused:
        return refused.code
def take():
    with urllib.request.urlopen(api + "invocation/next") as task:
        task.read()
        return task.headers["Lambda-Runtime-Aws-Request-Id"]
id = take()
BODY
time.sleep(3600)
"""
MISBEHAVIOUR = {
    "no JSON": ("post(f'invocation/{id}/response', b'{not json')", "not JSON"),
    "half a number": ("post(f'invocation/{id}/response', b'1e')", "not JSON"),
    "bytes": ("post(f'invocation/{id}/response', bytes(range(256)))", "not JSON"),
    "deep": ("post(f'invocation/{id}/response', b'[' * 100000)", "not JSON"),
    "another id": ("post('invocation/00000000-0000-4000-8000-000000000000/response', b'1')", "not current"),
    "a path as id": (
        "post('invocation/..%2f..%2f/response', b'1'); post('invocation/x/response', b'1')",
        "not current",
    ),
    "next without an answer": ("take()", "before it had answered"),
    "an error of another": ("post('invocation/x/error', b'{}')", "not current"),
    "gone": ("os._exit(3)", "process ended"),
    "killed": ("os.kill(os.getpid(), 9)", "process ended"),
    "all processes killed": ("os.kill(-1, 9)", "process ended"),
    "the init stopped": ("os.kill(os.getppid(), 19); post(f'invocation/{id}/response', b'1')", "timed out"),
    "nothing": ("pass", "timed out"),
}


@pytest.mark.parametrize("case", MISBEHAVIOUR)
async def test_what_breaks_the_runtime_apis_rules_fails_and_is_not_used_again(system: RunnerSystem, case: str) -> None:
    output, expected = MISBEHAVIOUR[case]
    udf = system.executable(TALKER.replace("BODY", output))
    answer = await system.run(udf, timeout_seconds=2 if expected == "timed out" else 50)
    assert answer.failed
    assert expected in answer.body["errorMessage"]
    assert not [host for host in system.functions.pool._idle if host.key.sha256 == udf.sha256]


async def test_an_answer_given_twice_ends_the_sandbox(system: RunnerSystem) -> None:
    udf = system.executable(TALKER.replace("BODY", "[post(f'invocation/{id}/response', b'1') for _ in 'ab']"))
    answer = await system.run(udf)
    assert answer.body == 1
    await until(lambda: not system.functions.pool._busy, "no sandbox is busy")
    assert not [host for host in system.functions.pool._idle if host.key.sha256 == udf.sha256]


async def test_calls_that_climb_are_refused(either: RunnerSystem) -> None:
    answer = await either.run(
        either.python(
            """
            import ctypes, errno, platform, subprocess
            libc = ctypes.CDLL(None, use_errno=True)
            X86 = {"ptrace": 101, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "keyctl": 250,
                "add_key": 248, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "kexec_load": 246,
                "init_module": 175, "finit_module": 313, "unshare": 272, "setns": 308, "process_vm_readv": 310,
                "open_by_handle_at": 304, "io_uring_setup": 425, "memfd_create": 319, "fsopen": 430, "swapon": 167,
                "reboot": 169, "syslog": 103, "personality": 135, "shmget": 29}
            ARM = {"ptrace": 117, "mount": 40, "unshare": 97, "setns": 268, "bpf": 280, "keyctl": 219,
                "userfaultfd": 282, "perf_event_open": 241, "memfd_create": 279, "io_uring_setup": 425}
            def handler(event, context):
                calls = X86 if platform.machine() == "x86_64" else ARM
                clone = 56 if platform.machine() == "x86_64" else 220
                got = {}
                for name, number in calls.items():
                    ctypes.set_errno(0)
                    if libc.syscall(number, 0, 0, 0, 0, 0) != -1:
                        got[name] = "done"
                    elif ctypes.get_errno() != errno.EPERM:
                        got[name] = errno.errorcode[ctypes.get_errno()]
                for name, flag in (("user", 0x10000000), ("net", 0x40000000), ("mount", 0x20000)):
                    ctypes.set_errno(0)
                    if libc.syscall(clone, flag | 17, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM:
                        got["clone " + name] = ctypes.get_errno()
                if libc.syscall(435, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
                    got["clone3"] = ctypes.get_errno()
                if subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode == 0:
                    got["unshare(1)"] = "done"
                return got
            """
        )
    )
    assert not answer.failed, answer.body
    assert answer.body == {}


async def test_the_object_listener_serves_what_the_token_names_and_nothing_else(system: RunnerSystem) -> None:
    """The hostile names of storage, requested here; with another task's token, and without one."""
    claimed, other = await system.claimed(), await system.claimed()
    ours = system.walk.control.objects
    dataset = claimed.task.outputs[0].dataset_uuid
    names_of_task = {"dataset": dataset, "task": claimed.task.task_id}
    good = f"trace-scratch/buffers/{dataset}/{claimed.task.task_id}/1/b.jsonl"
    names = [uri.removeprefix("s3://").format(**names_of_task) for uri in ESCAPES.values()]
    secret = ObjectName.parse("s3://trace/datasets/theirs/v/part.parquet")
    ours.put(secret, b"theirs", replace=True)
    udf = system.python(
        f"""
        import http.client, os
        from helpers import ask
        NAMES = {names!r}
        GOOD = {good!r}
        OTHER = {other.capability_token!r}
        """
        """
        def raw(method, path, token, body=None):
            line = http.client.HTTPConnection(os.environ["TRACE_OBJECTS_URL"].removeprefix("http://"), timeout=20)
            line.putrequest(method, path.replace("\\n", "%0a"), skip_accept_encoding=True)
            if token:
                line.putheader("X-Trace-Task-Capability", token)
            line.putheader("content-length", str(len(body or b"")))
            line.endheaders(body or b"")
            answer = line.getresponse()
            return answer.status, answer.read().decode()
        def handler(event, context):
            token = event["capability_token"]
            return {
                "good": [raw("PUT", "/" + GOOD, token, b"{}")[0], raw("PUT", "/" + GOOD, token, b"{}")[0],
                         raw("PUT", "/" + GOOD, token, b"other")[0], raw("GET", "/" + GOOD, token)],
                "listed": raw("GET", "/" + GOOD.replace("/", "?prefix=", 1).removesuffix("b.jsonl"), token)[1],
                "written": {name: raw("PUT", "/" + name, token, b"x")[0] for name in NAMES},
                "read": [raw("GET", path, token)[0] for path in
                    ("/trace/datasets/theirs/v/part.parquet", "/trace/../trace/datasets/theirs/v/part.parquet",
                     "/trace?prefix=", "/trace?prefix=datasets/", "/trace?prefix=/", "/?prefix=", "/trace", "/",
                     "/trace-scratch?prefix=buffers/", "//etc/passwd", "/..%2f..%2fetc/passwd")],
                "others": [raw("GET", "/" + GOOD, OTHER)[0], raw("GET", "/" + GOOD, None)[0],
                           raw("GET", "/" + GOOD, token[:-4] + "AAAA")[0]],
                "methods": [raw(method, "/" + GOOD, token)[0] for method in ("DELETE", "POST", "PATCH", "HEAD")],
                "large": raw("PUT", "/" + GOOD.replace("b.jsonl", "c.jsonl"), token, b"x" * (17 << 20))[0],
            }
        """
    )
    answer = await system.run(udf, claimed)
    assert not answer.failed, answer.body
    body = answer.body
    assert body["good"] == [200, 200, 409, [200, "{}"]], body["good"]
    assert [item["size"] for item in json.loads(body["listed"])["objects"]] == [2]
    assert set(body["written"].values()) <= {400, 403}, body["written"]
    assert set(body["read"]) <= {400, 403, 404}, body["read"]
    assert body["others"] == [403, 401, 401]
    assert set(body["methods"]) == {404}
    assert body["large"] == 400
    assert ours.get(secret) == b"theirs"


async def test_a_flood_of_connections_is_cut_off_and_the_listener_stays(system: RunnerSystem) -> None:
    answer = await system.run(
        system.python(
            """
            import os, select, socket, time
            from helpers import *
            def handler(event, context):
                host, port = os.environ["TRACE_TASK_URL"].removeprefix("http://").split(":")
                lines, refused = [], set()
                for _ in range(40):
                    line = socket.create_connection((host, int(port)), timeout=20)
                    lines.append(line)
                    try:
                        line.sendall(b"POST /v1/task/heart")
                    except OSError:
                        pass
                until = time.monotonic() + 30
                while len(refused) < WANTED and time.monotonic() < until:
                    for line in select.select([item for item in lines if item not in refused], [], [], 1)[0]:
                        refused.add(line)  # half a request gets no answer: it was closed
                for line in lines:
                    line.close()
                for _ in range(200):
                    try:
                        return [len(refused), complete(event)[0]]
                    except OSError:
                        time.sleep(0.1)
            """.replace("WANTED", str(40 - system.settings.udf.connections))
        )
    )
    assert not answer.failed, answer.body
    refused, completed = answer.body
    assert refused == 40 - system.settings.udf.connections
    assert completed == 200


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


async def works(system: RunnerSystem) -> None:
    """The runner still serves."""
    answer = await system.run(system.python(f"def handler(event, context): return 'well'  # {uuid4()}\n"))
    assert answer.body == "well", answer
