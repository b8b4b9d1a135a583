"""Fixtures for every test: one real Postgres, migrated templates, and a fresh clone of them for each test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest

from tests.support import checkouts
from tests.support.aws.moto import running_moto
from tests.support.one_connection import one_connection_each
from tests.support.postgres import QUICK, RunningServer, running
from tests.support.schedule import SlowestFirst, add_long_option, leave_out_long_tests, shuffle
from tests.support.spark.session import end_shared, share_with_generated_code
from tests.support.systems.processes import ForkServer, running_fork_server
from tests.support.waiting import SECONDS
from tracelake.lite.launch import spawn
from tracelake.lite.network_ports import choose_store_ports, free_port
from tracelake.lite.postgres import Cluster
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.settings import ObjectSettings
from tracelake.store.migrate import Database, migrate

IN_MEMORY_BYTES = 4 * 1024**3


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs tests in the background ignores Ctrl-C, and so would whatever they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine, not on the code: a busy one would fail it after 0.2 s.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_long_tests(config, items)
    if (seed := config.getoption("--shuffle-seed")) is not None:
        shuffle(items, seed)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_long_option(parser)
    parser.addoption("--fault-seconds", type=float, default=4.0, help="how long the random fault run disturbs")
    parser.addoption("--prefix-examples", type=int, default=200, help="how many prefixes the fuzzer makes up")
    parser.addoption("--sql-examples", type=int, default=40, help="how many queries the SQL fuzzer makes up")
    parser.addoption("--bomb-examples", type=int, default=25, help="how many queries of huge values are made up")
    parser.addoption("--version-examples", type=int, default=8, help="how many histories of DAG versions are made up")
    parser.addoption("--switch-reads", type=int, default=600, help="reads during switches; a switch for each hundred")
    parser.addoption("--bomb-seed", type=int, default=1, help="which ones")
    parser.addoption("--parity-examples", type=int, default=400, help="how many expressions two engines compute")
    parser.addoption("--parity-seed", type=int, default=1, help="which ones")
    parser.addoption("--fault-seed", type=int, default=1, help="what it disturbs, and when")
    parser.addoption("--storm-seed", type=int, default=None, help="which ones; without it, others each time")
    parser.addoption("--scale-ins", type=int, default=40, help="how many workers are stopped under load")
    parser.addoption("--storm-seconds", type=float, default=20.0, help="how long a whole system is disturbed")
    parser.addoption("--storms", type=int, default=3, help="how many stories of reorgs and kills are made up")
    parser.addoption("--shuffle-seed", type=int, default=None, help="runs files, and tests of a file, in another order")
    parser.addoption("--generated-code", action="store_true", help="the shared Spark compiles its plans to Java code")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--generated-code"):
        share_with_generated_code()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SlowestFirst:
    return SlowestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected tests and imported modules last to the end: garbage is not looked for among them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    end_shared()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts Dispatchers and workers that tests kill, without importing them each time."""
    with running_fork_server() as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _no_second_connection() -> Iterator[None]:
    """No verb waits for a connection while it holds one: whichever test meets such a path fails."""
    with one_connection_each():
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[RunningServer]:
    folder = Path(tempfile.mkdtemp(prefix="trace-test-", dir=in_memory()))
    folder.chmod(0o711)
    cluster = Cluster("test", folder / "data", folder / "s", free_port(), settings=QUICK)
    try:
        with running(cluster) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_memory() -> Path | None:
    """A file system in memory with room for the databases of a run, if there is one: hundreds of clones are made."""
    shared = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    try:
        found = os.statvfs(shared)
        available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
    except (OSError, StopIteration):
        return None
    room = min(found.f_bavail * found.f_frsize, int(available.split()[1]) * 1024 // 2)
    return shared if room > IN_MEMORY_BYTES else None


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """A real S3 server with STS, as `trace up` starts it. 4 s, once."""
    folder = Path(tempfile.mkdtemp(prefix="trace-test-s3-"))
    server, process = _started_store(folder)
    try:
        yield server
    finally:
        process.kill()
        process.wait()
        server.clear()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """AWS as far as its APIs go, and keys for it in the environment, as AWS's own chain finds them."""
    with running_moto() as url, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        yield url


def _started_store(folder: Path) -> tuple[SeaweedFS, subprocess.Popen[bytes]]:
    """It takes eight ports, and one that was free may be somebody else's by then: three tries."""
    for number in range(3):
        server, log = SeaweedFS(folder / f"data{number}", choose_store_ports(0), ObjectSettings()), folder / "log"
        with log.open("wb") as said:
            process = spawn(server.launch(), said)
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if server.answers():
                return server, process
            time.sleep(0.1)
        process.kill()
        process.wait()
        server.clear()
    raise AssertionError(log.read_text(errors="replace")[-3000:])


@pytest.fixture(scope="session")
def template(postgres: RunningServer) -> Callable[[Database], str]:
    """The name of a migrated database, made on first use and never connected to again."""
    made: dict[Database, str] = {}

    def name_of(database: Database) -> str:
        if database not in made:
            name = f"template_{database}"
            dsn = postgres.create_database(name)
            migrate(dsn, database)
            # The first connection writes what each reads of the catalogue, and clones get that file too.
            psycopg.connect(dsn).close()
            made[database] = name
        return made[database]

    return name_of


@pytest.fixture
def clone(postgres: RunningServer, template: Callable[[Database], str]) -> Iterator[Callable[[Database], str]]:
    """The DSN of a fresh migrated database, dropped after the test."""
    names: list[str] = []

    def make(database: Database) -> str:
        names.append(f"{database}_{uuid.uuid4().hex[:12]}")
        return postgres.create_database(names[-1], template(database))

    yield make
    for name in names:
        postgres.drop_database(name)


@pytest.fixture
def state_db(clone: Callable[[Database], str]) -> str:
    return clone("state")


@pytest.fixture
def data_db(clone: Callable[[Database], str]) -> str:
    return clone("data")


@pytest.fixture
def queue_db(clone: Callable[[Database], str]) -> str:
    return clone("queue")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real blocks and files that nobody here made; they lie beside the checkout, where there are any."""
    for checkout in checkouts():
        place = checkout.parent / "shared" / "data"
        if (place / "execution-apis").is_dir():
            return place
    pytest.skip("there is no shared/data beside the checkout")
