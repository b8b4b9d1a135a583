"""`trace demo`: runs a whole Trace on a test chain, attacks it, and checks every row.

Every line is an observed result. It raises if anything is not as expected.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tracelake.errors import SetupError
from tracelake.lite.end_orphans import members_of
from tracelake.lite.home import Home
from tracelake.lite.network_ports import LOOPBACK, free_port
from tracelake_demo.check_alerts import Raised, raised
from tracelake_demo.check_rows import Story, check_datasets
from tracelake_demo.receiver import Hook, listening
from tracelake_demo.show_change import ShowChange
from tracelake_demo.show_flow import ShowFlow
from tracelake_demo.system import Command, Running, nobodys_settings, up
from tracelake_devchain.chain import Chain
from tracelake_devchain.process import Devchain, running

DAG = "evm_quickstart"
PAST, PIECE, LIVE = 2000, 500, 60
"""Blocks of the backfill and per task; the follower begins after them.

The quickstart needs one task for all of them, which is quicker; here processes are killed between two tasks."""
RANGE, FINALITY = 50, 32
STORY: Final = Story(PAST, PIECE, RANGE)
CHAIN_ID: Final = 1337
FUNCTION: Final = "large_transfers"
QUERIES: Final = (
    "SELECT token, sum(transfers) AS n FROM daily_volume GROUP BY token",
    "SELECT token, median(transfers) AS n FROM daily_volume GROUP BY token",
)
"""Sail is known to give the rows of the first; it has no `median` that does."""
UUID: Final = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""The first part is shown."""
WAIT_SECONDS = 180.0
LOOK_SECONDS: Final = 0.3
"""Polling more often would slow down what it waits for."""


def quickstart() -> str:
    """The DAG that is shown: `dags/evm_quickstart.yaml`."""
    return files("tracelake_demo").joinpath("evm_quickstart.yaml").read_text()


def _in_pieces(folder: Path) -> Path:
    """The quickstart with the demo's block counts, in a file beside its code."""
    (folder / FUNCTION).symlink_to(str(files("tracelake_demo") / FUNCTION))
    file = folder / f"{DAG}.yaml"
    file.write_text(quickstart().replace(f"chunk: {PAST}", f"chunk: {PIECE}"))
    return file


def demo(console: Console, command: Command | None = None) -> None:
    """`command` runs a verb in this process; without it, each verb is a process."""
    folder = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    port = free_port()
    try:
        with nobodys_settings(), ExitStack() as until_the_end, ThreadPoolExecutor(1) as beside, listening() as hook:
            # The chain is created while Trace starts; its address is known before.
            chain = running(chain_id=CHAIN_ID, blocks=PAST, finality=FINALITY, port=port)
            begun = beside.submit(until_the_end.enter_context, chain)
            node = f"http://{LOOPBACK}:{port}"
            _Show(console, Home(folder / "home"), node, begun.result, hook, command, beside).everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Show:
    _console: Console
    _home: Home
    _node: str
    """The address that the chain will have."""
    _begun: Callable[[], Devchain]
    """Waits until the chain is ready."""
    _hook: Hook
    _command: Command | None
    _beside: Executor

    @property
    def _devchain(self) -> Devchain:
        return self._begun()

    def everything(self) -> None:
        self._heading("Starting: a chain, two Postgres servers, eight processes, certificates and keys")
        settings = {
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={self._node}",
            "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(CHAIN_ID),
            "TRACE_DELIVERY__ALLOW": "127.0.0.0/8",  # the receiver is on this machine
        }
        with up(self._home, self._line, settings, self._command) as system:
            self._line(f"a chain of {PAST:,} blocks with token transfers: {self._devchain.url}")
            self._show_access(system)
            self._deploy(system)
            self._heading("Spark, which started meanwhile")
            system.until_all_is_ready()
            self._backfill(system)
            truth = self._follow(system)
            self._datasets(system, self._alerts(system, truth))
            self._queries(system)
            self._explain(system)
            self._heading("A change of SQL: planned, built beside what serves, compared, promoted, and rolled back")
            ShowChange(system, self._home.root.parent / f"{DAG}.yaml", self._line, self._expect).show()
            self._heading("A queue that is too long pauses what is upstream; a schedule fires a source")
            ShowFlow(system, self._line, self._wait, self._expect).show()
            families = {int(process["pid"]) for process in system.processes()}
        self._expect(not members_of(families), "no process is left")

    def _show_access(self, system: Running) -> None:
        self._heading("Access: TLS, and a token for every call")
        try:
            httpx.get(system.ready["endpoints"]["gateway"] + "/healthz")
        except httpx.ConnectError:
            self._line("without our CA       refused: the certificate is not trusted")
        stranger = system.get("/v1/me", token=False)
        self._expect(stranger.status_code == httpx.codes.UNAUTHORIZED, "a call without a token is refused")
        self._line(f"/v1/me, no token     {stranger.status_code} {stranger.json()['error']['message']}")
        me = system.get("/v1/me").json()
        self._line(f"/v1/me, dev token    200 {me['email']}, {me['role']} of organisation {me['org_slug']!r}")

    def _deploy(self, system: Running) -> None:
        self._heading(
            "Three DAGs: the chain, past and live, with user code that watches it; alerts to a webhook; and a schedule"
        )
        channel = system.trace("alert", "channel", "create", "demo", "--url", self._hook.url)
        self._hook.secret = channel["secret"]
        system.trace("alert", "create", "large_transfers", "--channel", "demo")
        self._line("an alert, large_transfers, and a channel for it: a webhook on this machine")
        for name, file in (
            (DAG, _in_pieces(self._home.root.parent)),
            ("alerts", files("tracelake_demo") / "alerts.yaml"),
            ("flow", files("tracelake_demo") / "flow.yaml"),
        ):
            deployed = system.trace("dag", "deploy", str(file), "--activate")
            self._line(f"{name}: {', '.join(deployed['deployed']['jobs'])}")
        (bundle,) = system.trace("udf", "list")["bundles"]
        size, sha256 = bundle["size_bytes"], bundle["sha256"]
        self._line(f"its code, {bundle['name']}: a bundle of {size:,} bytes, {sha256[:12]}..., pushed with it")
        # Not earlier: an alert raised before the DAG that delivers alerts is active is not delivered.
        self._devchain.mine(LIVE)
        self._line(f"the chain grows by {LIVE} blocks, {PAST:,} to {PAST + LIVE - 1:,}: the tip, which one job follows")

    def _backfill(self, system: Running) -> None:
        self._heading(f"Blocks 0 to {PAST - 1:,}, fetched, proved by their hashes, and written as Parquet on Spark")
        system.trace("trigger", DAG, "backfill", "--range", f"0-{PAST - 1}")
        pieces = PAST // PIECE
        bars = Progress(
            TextColumn("  {task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        with bars:
            jobs = {"ingest": "blocks ingested", "decode": "transfers decoded", "blocks_checked": "blocks checked"}
            shown = {job: bars.add_task(words, total=pieces * PIECE) for job, words in jobs.items()}
            attacks = [self._kill_dispatcher, self._kill_runner]
            began = time.monotonic()
            while True:
                completed = Counter(item["job"] for item in system.tasks(DAG, status="Completed"))
                done = {job: min(completed[job], pieces) for job in jobs}
                for job, bar in shown.items():
                    bars.update(bar, completed=done[job] * PIECE)
                if all(done[job] == pieces for job in jobs):
                    break
                if done["ingest"] and attacks:  # while it runs
                    bars.console.print(f"  {attacks.pop(0)(system)}", markup=False, highlight=False)
                self._expect(time.monotonic() - began < WAIT_SECONDS, f"the backfill ends; so far {done}")
                time.sleep(LOOK_SECONDS)

    def _follow(self, system: Running) -> Future[Chain]:
        """The chain to compare with, computed again meanwhile."""
        self._heading("The tip, followed through reorgs; final blocks are compacted, large transfers raise alerts")
        head = self._followed_to_head(system)
        self._devchain.reorg(3)
        self._line(f"reorg: the last 3 blocks below {head:,} are replaced by others")
        head = self._mined(system, 30)
        self._wait(lambda: self._looked(system), "user code has read it")
        left = self._devchain.describe()["branch"]
        self._devchain.reorg(11)
        self._followed_to_head(system)
        self._wait(lambda: self._looked(system), "user code has read it")
        self._devchain.switch(left, head + 5)
        self._line(f"reorg: the last 11 blocks below {head:,} are replaced by others, and these by the first again")
        head = self._mined(system, 40)
        truth = self._beside.submit(self._devchain.chain)
        ranges = self._settled(system, truth.result())
        self._line(f"the hot tables stand at block {head:,}; {ranges} ranges of {RANGE} final blocks are Parquet now")
        return truth

    def _settled(self, system: Running, chain: Chain) -> int:
        """Waits until all final blocks are compacted and derived data is done; returns the number of ranges."""
        ranges = STORY.compacted(chain)
        self._wait(lambda: self._completed(system, "compact") >= ranges, f"{ranges} ranges are compacted")
        self._wait(lambda: self._quiet(system), "all derived data is done")
        return ranges

    def _alerts(self, system: Running, truth: Future[Chain]) -> Chain:
        self._heading("Alerts: found by user code in a sandbox, delivered once")
        self._line(self._tried_again(system))
        chain = truth.result()
        if chain.head != self._devchain.describe()["head"]:  # it was retried on more blocks
            chain = self._devchain.chain()
            self._settled(system, chain)
        found = self._all_raised(system, chain)
        self._expect(found.rows == found.keys, f"{found.rows} rows are as many events, not {found.keys}")
        self._expect(not found.false, f"every alert is of a real transfer (false: {found.false})")
        self._expect(not found.doubled and not self._hook.refused, "no alert is delivered under two ids, or unsigned")
        gone = f"{found.orphaned} of blocks that a reorg replaced"
        self._line(f"alert_events         {found.rows} rows for {found.keys} large transfers, {gone}; none is false")
        self._line(f"critical ones        {found.critical}, each delivered once to the webhook, signed")
        example = self._hook.deliveries[0]["event"]
        paid = example["payload"]
        amount = f"{int(paid['amount']) // 10**18:,} tokens (of 18 decimals)"
        self._line(f"such as              block {example['block_number']:,}: {amount} of {paid['token']}")
        task = next(item for item in system.tasks(DAG, job=FUNCTION, status="Completed"))
        for line in system.trace("task", "logs", task["id"])["lines"][-1:]:
            self._line(f"trace task logs      {line['text']}")
        return chain

    def _all_raised(self, system: Running, chain: Chain) -> Raised:
        began = time.monotonic()
        while not (found := raised(system, chain, self._hook, PAST, chain.head)).all_received:
            self._expect(time.monotonic() - began < WAIT_SECONDS, f"every large transfer has an alert: {found}")
            time.sleep(LOOK_SECONDS)
        return found

    def _mined(self, system: Running, blocks: int) -> int:
        """Mines, waits until the follower has written the new head, and returns its number."""
        self._devchain.mine(blocks)
        return self._followed_to_head(system)

    def _followed_to_head(self, system: Running) -> int:
        head = int(self._devchain.describe()["head"])
        self._wait(lambda: self._followed(system) == head, f"block {head} is followed")
        return head

    def _datasets(self, system: Running, chain: Chain) -> None:
        self._heading("Every dataset, compared with the chain row by row")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for column in ("  dataset", "rows", "blocks", "commits", "equals the chain"):
            table.add_column(column, justify="right" if column in {"rows", "commits"} else "left")
        seen = list(check_datasets(system, chain, STORY))
        for item in seen:
            table.add_row(f"  {item.name}", f"{item.rows:,}", item.blocks, str(item.commits or "-"), item.verdict)
        self._console.print(table)
        self._line("commits: how often its files changed; ranges of a reorg were rewritten, and a table has none")
        error = [item.name for item in seen if item.error]
        self._expect(not error, f"every dataset equals the chain (different: {', '.join(error)})")

    def _queries(self, system: Running) -> None:
        """Each is run twice: the first time starts its engine, if nothing did before."""
        self._heading("Queries: the service chooses the engine of each")
        for sql in QUERIES:
            first, again = (system.answer(sql) for _ in range(2))
            self._expect(sorted(first["rows"]) == sorted(again["rows"]) != [], f"rows of {sql}")
            took = f"{first['milliseconds']:,} ms, then {again['milliseconds']:,} ms"
            self._line(f"on {again['engine'].capitalize():<17} {took}: {sql}")

    def _explain(self, system: Running) -> None:
        first = f"0-{PIECE - 1}"
        self._heading(f"trace why transfers {first}")
        found = system.trace("why", "transfers", first)
        for step in found["steps"]:
            output = UUID.sub(r"\1...", step["sentence"])
            self._line(f"{step['kind']:<8} {output}")
        self._line(f"so       {found['verdict']}")

    def _kill_dispatcher(self, system: Running) -> str:
        began = time.monotonic()
        self._killed(system, "dispatcher")
        return f"kill -9 of the Dispatcher: restarted in {time.monotonic() - began:.1f} s"

    def _kill_runner(self, system: Running) -> str:
        self._devchain.mine(10)
        self._wait(lambda: self._seen_running(system), "a function runs")
        self._killed(system, "runner")
        return "kill -9 of the runner while user code ran: restarted"

    def _seen_running(self, system: Running) -> bool:
        """One that has ended before it was seen is followed by another, for the next block."""
        tasks = system.tasks(DAG, job=FUNCTION)
        if tasks and all(item["status"] == "Completed" for item in tasks):
            self._devchain.mine(1)
        return any(item["status"] == "Running" for item in tasks)

    def _tried_again(self, system: Running) -> str:
        """A function that had just ended was not interrupted: then it tries again."""
        for _ in range(5):
            self._followed_to_head(system)
            self._wait(lambda: self._quiet(system), "interrupted functions are done")
            again = [item for item in system.tasks(DAG, job=FUNCTION, status="Completed") if item["attempt"] > 1]
            if again:
                runs = f"{len(again)} runs were" if len(again) > 1 else "one run was"
                return f"{FUNCTION:<20} {runs} interrupted by kill -9, retried, and completed"
            self._kill_runner(system)
        raise SetupError("the demo failed: no function was interrupted")

    def _killed(self, system: Running, name: str) -> None:
        """Kills it with SIGKILL, and waits for its restart."""
        old = int(system.process(name)["pid"])
        os.kill(old, signal.SIGKILL)

        def is_back() -> bool:
            now = system.process(name)
            return bool(now["state"] == "ready" and now["pid"] != old)

        self._wait(is_back, f"the {name} comes back")

    def _completed(self, system: Running, job: str) -> int:
        return len(system.tasks(DAG, job=job, status="Completed"))

    def _looked(self, system: Running) -> bool:
        return all(item["status"] == "Completed" for item in system.tasks(DAG, job=FUNCTION))

    def _quiet(self, system: Running) -> bool:
        """Waits until no task and no event is pending."""
        for dag in (DAG, "alerts"):
            tasks = system.tasks(dag)
            # Canceled: `daily` recomputes all, so of several waiting updates only the newest runs.
            ended = {"Completed", "Canceled"}
            left = [item for item in tasks if item["job"] != "follow" and item["status"] not in ended]
            gone = [item for item in left if item["status"] == "Failed" and item["next_retry_at"] is None]
            self._expect(not gone, f"no task fails permanently: {gone}")
            if left or not tasks:  # the list is empty while the Gateway is down
                return False
        return system.outbox_is_empty()

    def _followed(self, system: Running) -> int | None:
        for task in system.tasks(DAG, job="follow", status="Running"):
            progress: dict[str, Any] = system.get(f"/v1/tasks/{task['id']}").json().get("progress") or {}
            return progress.get("done")
        return None

    def _wait(self, condition: Any, expectation: str) -> None:
        began = time.monotonic()
        while not condition():
            self._expect(time.monotonic() - began < WAIT_SECONDS, expectation)
            time.sleep(LOOK_SECONDS)

    def _heading(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/]")

    def _line(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False, highlight=False)

    def _expect(self, condition: bool, expectation: str) -> None:
        if not condition:
            raise SetupError(f"the demo failed: expected that {expectation}")
