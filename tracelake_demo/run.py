"""`trace demo`: a whole Trace on this machine, on a chain of its own, shown and attacked, and checked row for row.

Every line says what was seen. It raises if anything is not as it should be.
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
from tracelake.lite.ports import LOOPBACK, free_port
from tracelake_demo.check_alerts import Raised, raised
from tracelake_demo.check_rows import Story, check_datasets
from tracelake_demo.receiver import Hook, listening
from tracelake_demo.system import Command, Running, nobodys_settings, up
from tracelake_devchain.chain import Chain
from tracelake_devchain.process import Devchain, running

DAG = "evm_quickstart"
PAST, PIECE = 2000, 500
"""Blocks that are backfilled, and how many a task takes; the follower begins where they end.

The quickstart takes all of them in one task, which is quicker; here processes are killed between two of them."""
RANGE, FINALITY = 50, 32
STORY: Final = Story(PAST, PIECE, RANGE)
CHAIN_ID: Final = 1337
FUNCTION: Final = "large_transfers"
UUID: Final = re.compile(r"\b([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Its first part is enough for eyes."""
PATIENCE_SECONDS = 180.0
LOOK_SECONDS: Final = 0.3
"""Who looks more often takes more from what he waits for than he gains."""


def quickstart() -> str:
    """The DAG that is shown: `dags/evm_quickstart.yaml`."""
    return files("tracelake_demo").joinpath("evm_quickstart.yaml").read_text()


def _in_pieces(folder: Path) -> Path:
    """The quickstart with pieces of the demo's size, in a file of its own beside the code that it names."""
    (folder / FUNCTION).symlink_to(str(files("tracelake_demo") / FUNCTION))
    file = folder / f"{DAG}.yaml"
    file.write_text(quickstart().replace(f"chunk: {PAST}", f"chunk: {PIECE}"))
    return file


def demo(console: Console, command: Command | None = None) -> None:
    """`command` runs a verb of the command line in this process; without it, each is a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    port = free_port()
    try:
        with nobodys_settings(), ExitStack() as until_the_end, ThreadPoolExecutor(1) as beside, listening() as hook:
            # The chain is made while Trace starts, which is told now where it will be.
            chain = running(chain_id=CHAIN_ID, blocks=PAST + 60, finality=FINALITY, port=port)
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
    """Where the chain is going to be."""
    _begun: Callable[[], Devchain]
    """Waits until it is there."""
    _hook: Hook
    _command: Command | None
    _beside: Executor

    @property
    def _devchain(self) -> Devchain:
        return self._begun()

    def everything(self) -> None:
        self._heading("Starting from nothing: a chain, two Postgres servers, eight processes, certificates and keys")
        settings = {
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={self._node}",
            "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(CHAIN_ID),
            "TRACE_DELIVERY__ALLOW": "127.0.0.0/8",  # who is told here is on this machine
        }
        with up(self._home, self._line, settings, self._command) as system:
            self._line(f"a chain of {PAST + 60:,} blocks with token transfers: {self._devchain.url}")
            self._knock(system)
            self._deploy(system)
            self._heading("Spark, which was warmed meanwhile")
            system.until_all_is_ready()
            self._backfill(system)
            truth = self._follow(system)
            self._datasets(system, self._alerts(system, truth))
            self._explain(system)
            families = {int(process["pid"]) for process in system.processes()}
        self._expect(not members_of(families), "nothing is left running")

    def _knock(self, system: Running) -> None:
        self._heading("Knocking at the doors: TLS, and nobody without a token")
        try:
            httpx.get(system.ready["endpoints"]["gateway"] + "/healthz")
        except httpx.ConnectError:
            self._line("without our CA       refused: the certificate is nobody's we know")
        stranger = system.get("/v1/me", token=False)
        self._expect(stranger.status_code == httpx.codes.UNAUTHORIZED, "no token, no answer")
        self._line(f"/v1/me, no token     {stranger.status_code} {stranger.json()['error']['message']}")
        me = system.get("/v1/me").json()
        self._line(f"/v1/me, dev token    200 {me['email']}, {me['role']} of organisation {me['org_slug']!r}")

    def _deploy(self, system: Running) -> None:
        self._heading("Two DAGs: the chain, past and live, with code of users that watches it; and who is told of what")
        channel = system.trace("alert", "channel", "create", "demo", "--url", self._hook.url)
        self._hook.secret = channel["secret"]
        system.trace("alert", "create", "large_transfers", "--channel", "demo")
        self._line("an alert, large_transfers, and a channel for it: a webhook on this machine")
        for name, file in (
            (DAG, _in_pieces(self._home.root.parent)),
            ("alerts", files("tracelake_demo") / "alerts.yaml"),
        ):
            deployed = system.trace("dag", "deploy", str(file), "--activate")
            self._line(f"{name}: {', '.join(deployed['deployed']['jobs'])}")
        (bundle,) = system.trace("udf", "list")["bundles"]
        size, sha256 = bundle["size_bytes"], bundle["sha256"]
        self._line(f"its code, {bundle['name']}, is a bundle of {size:,} bytes, {sha256[:12]}..., pushed with it")

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
                if done["ingest"] and attacks:  # in the midst of it
                    bars.console.print(f"  {attacks.pop(0)(system)}", markup=False, highlight=False)
                self._expect(time.monotonic() - began < PATIENCE_SECONDS, f"the backfill ends; so far {done}")
                time.sleep(LOOK_SECONDS)

    def _follow(self, system: Running) -> Future[Chain]:
        """Gives the chain with which all is compared: made once more by the same rules, while there is time."""
        self._heading("The tip, followed through reorgs; what is final is compacted, what is large is told")
        head = self._followed_to_head(system)
        self._devchain.reorg(3)
        self._line(f"reorg: the last 3 blocks below {head:,} are replaced by others")
        head = self._mined(system, 30)
        self._wait(lambda: self._looked(system), "code of users has seen it")
        left = self._devchain.describe()["branch"]
        self._devchain.reorg(11)
        self._followed_to_head(system)
        self._wait(lambda: self._looked(system), "code of users has seen it")
        self._devchain.switch(left, head + 5)
        self._line(f"reorg: the last 11 blocks below {head:,} are replaced by others, and these by the first again")
        head = self._mined(system, 40)
        truth = self._beside.submit(self._devchain.chain)
        ranges = self._settled(system, truth.result())
        self._line(f"the hot tables stand at block {head:,}; {ranges} ranges of {RANGE} final blocks are Parquet now")
        return truth

    def _settled(self, system: Running, chain: Chain) -> int:
        """All that is final is compacted, and what follows from it is done; how many ranges that are."""
        ranges = STORY.compacted(chain)
        self._wait(lambda: self._completed(system, "compact") >= ranges, f"{ranges} ranges are compacted")
        self._wait(lambda: self._quiet(system), "everything that follows from it is done")
        return ranges

    def _alerts(self, system: Running, truth: Future[Chain]) -> Chain:
        self._heading("Alerts: rows that code of users found in a sandbox, told once")
        self._line(self._tried_again(system))
        chain = truth.result()
        if chain.head != self._devchain.describe()["head"]:  # it was tried again on more blocks
            chain = self._devchain.chain()
            self._settled(system, chain)
        found = self._all_told(system, chain)
        self._expect(found.rows == found.keys, f"{found.rows} rows are as many events, not {found.keys}")
        self._expect(not found.false, f"every alert is of a transfer that there was, not so: {found.false}")
        self._expect(not found.doubled and not self._hook.refused, "no alert is told under two ids, or unsigned")
        gone = f"{found.orphaned} of them of blocks that a reorg took away"
        self._line(f"alert_events         {found.rows} rows for {found.keys} large transfers, {gone}; none is false")
        self._line(f"critical ones        {found.critical}, each told once to the webhook, signed")
        example = self._hook.told[0]["event"]
        paid = example["payload"]
        amount = f"{int(paid['amount']) // 10**18:,} tokens (of 18 decimals)"
        self._line(f"such as              block {example['block_number']:,}: {amount} of {paid['token']}")
        task = next(item for item in system.tasks(DAG, job=FUNCTION, status="Completed"))
        for line in system.trace("task", "logs", task["id"])["lines"][-1:]:
            self._line(f"trace task logs      {line['text']}")
        return chain

    def _all_told(self, system: Running, chain: Chain) -> Raised:
        began = time.monotonic()
        while not (found := raised(system, chain, self._hook, PAST, chain.head)).all_received:
            self._expect(time.monotonic() - began < PATIENCE_SECONDS, f"every large transfer is told of: {found}")
            time.sleep(LOOK_SECONDS)
        return found

    def _mined(self, system: Running, blocks: int) -> int:
        """Mine, and wait until the follower has written the new head; its number."""
        self._devchain.mine(blocks)
        return self._followed_to_head(system)

    def _followed_to_head(self, system: Running) -> int:
        head = int(self._devchain.describe()["head"])
        self._wait(lambda: self._followed(system) == head, f"block {head} is followed")
        return head

    def _datasets(self, system: Running, chain: Chain) -> None:
        self._heading("Every dataset, checked row for row against the chain itself")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for column in ("  dataset", "rows", "blocks", "commits", "equals the chain"):
            table.add_column(column, justify="right" if column in {"rows", "commits"} else "left")
        seen = list(check_datasets(system, chain, STORY))
        for item in seen:
            table.add_row(f"  {item.name}", f"{item.rows:,}", item.blocks, str(item.commits or "-"), item.verdict)
        self._console.print(table)
        self._line("commits: how often its files changed; what a reorg touched was made again, and a table has none")
        wrong = [item.name for item in seen if item.wrong]
        self._expect(not wrong, f"every dataset equals the chain, not so: {', '.join(wrong)}")

    def _explain(self, system: Running) -> None:
        first = f"0-{PIECE - 1}"
        self._heading(f"trace why transfers {first}")
        found = system.trace("why", "transfers", first)
        for step in found["steps"]:
            said = UUID.sub(r"\1...", step["sentence"])
            self._line(f"{step['kind']:<8} {said}")
        self._line(f"so       {found['verdict']}")

    def _kill_dispatcher(self, system: Running) -> str:
        began = time.monotonic()
        self._killed(system, "dispatcher")
        return f"kill -9 of the Dispatcher: another took over in {time.monotonic() - began:.1f} s"

    def _kill_runner(self, system: Running) -> str:
        self._devchain.mine(10)
        self._wait(lambda: bool(system.tasks(DAG, job=FUNCTION, status="Running")), "a function runs")
        self._killed(system, "runner")
        return "kill -9 of the runner, while code of users ran: another took over"

    def _tried_again(self, system: Running) -> str:
        """One that had just ended when the runner was killed was not interrupted: then once more."""
        for _ in range(5):
            self._followed_to_head(system)
            self._wait(lambda: self._quiet(system), "what was interrupted is done")
            again = [item for item in system.tasks(DAG, job=FUNCTION, status="Completed") if item["attempt"] > 1]
            if again:
                runs = f"{len(again)} runs were" if len(again) > 1 else "one run was"
                return f"{FUNCTION:<20} {runs} cut off by kill -9, run again, and done"
            self._kill_runner(system)
        raise SetupError("the demo expected that a function was interrupted, and none was")

    def _killed(self, system: Running, name: str) -> None:
        """By -9, and back again."""
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
        """Nothing is left to do: no task is, and no event still waits to become one."""
        for dag in (DAG, "alerts"):
            tasks = system.tasks(dag)
            # Canceled: `daily` recomputes all, so of several updates that wait only the newest one's task runs.
            ended = {"Completed", "Canceled"}
            left = [item for item in tasks if item["job"] != "follow" and item["status"] not in ended]
            gone = [item for item in left if item["status"] == "Failed" and item["next_retry_at"] is None]
            self._expect(not gone, f"no task fails for good: {gone}")
            if left or not tasks:  # none at all are told while the door is away
                return False
        return system.outbox_is_empty()

    def _followed(self, system: Running) -> int | None:
        for task in system.tasks(DAG, job="follow", status="Running"):
            progress: dict[str, Any] = system.get(f"/v1/tasks/{task['id']}").json().get("progress") or {}
            return progress.get("done")
        return None

    def _wait(self, so: Any, promise: str) -> None:
        began = time.monotonic()
        while not so():
            self._expect(time.monotonic() - began < PATIENCE_SECONDS, promise)
            time.sleep(LOOK_SECONDS)

    def _heading(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/]")

    def _line(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False, highlight=False)

    def _expect(self, so: bool, promise: str) -> None:
        if not so:
            raise SetupError(f"the demo expected that {promise}, and it is not so")
