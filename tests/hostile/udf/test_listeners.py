"""Hostile code reaches its task's listeners and no others, and gets from them what its token names."""

from __future__ import annotations

import json
import socket
from uuid import uuid4

import pytest

from tests.support.cases.hostile_storage import ESCAPES
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.runner import RunnerSystem
from tests.support.waiting import until
from tracelake.domain.access.object_names import ObjectName

pytestmark = pytest.mark.anyio


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
