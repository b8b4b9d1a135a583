"""`trace demo`: a whole Trace on this machine, on a chain of its own, shown and attacked, and checked row for row.

Every line says what was seen. It raises if anything is not as it should be.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trace_platform.chain.devchain.handle import Devchain, running
from trace_platform.errors import SetupError
from trace_platform.lite.demo_alerts import raised
from trace_platform.lite.demo_check import check_datasets
from trace_platform.lite.demo_hook import Hook, listening
from trace_platform.lite.demo_system import Running, up
from trace_platform.lite.guard import members_of
from trace_platform.lite.home import Home

DAG = "evm_quickstart"
PAST, PIECE = 3000, 250
"""Blocks that are backfilled, and how many a task takes; the follower begins where they end."""
RANGE, FINALITY = 50, 32
PATIENCE_SECONDS = 180.0


def quickstart() -> str:
    """The DAG that is shown: `dags/evm_quickstart.yaml`."""
    return files("trace_platform.lite").joinpath("evm_quickstart.yaml").read_text()


def demo(console: Console) -> None:
    folder = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    try:
        with running(blocks=PAST + 60, finality=FINALITY) as devchain, listening() as hook:
            _Show(console, Home(folder / "home"), devchain, hook).everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Show:
    def __init__(self, console: Console, home: Home, devchain: Devchain, hook: Hook) -> None:
        self._console = console
        self._home = home
        self._devchain = devchain
        self._hook = hook

    def everything(self) -> None:
        self._heading("Starting from nothing: a chain, two Postgres servers, eight processes, certificates and keys")
        self._line(f"a chain of {PAST + 60:,} blocks with token transfers: {self._devchain.url}")
        settings = {
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={self._devchain.url}",
            "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(self._devchain.chain_id),
            "TRACE_DELIVERY__ALLOW": "127.0.0.0/8",  # who is told here is on this machine
        }
        with up(self._home, self._line, settings) as system:
            self._knock(system)
            self._deploy(system)
            self._backfill(system)
            self._follow(system)
            self._alerts(system)
            self._datasets(system)
            self._explain(system)
            families = {int(one["pid"]) for one in system.processes()}
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
        for name in (DAG, "alerts"):
            deployed = system.trace("dag", "deploy", str(files("trace_platform.lite") / f"{name}.yaml"), "--activate")
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
            killed = False
            began = time.monotonic()
            while True:
                counts = self._completed(system)
                for job, bar in shown.items():
                    bars.update(bar, completed=min(counts[job], pieces) * PIECE)
                if all(counts[job] >= pieces for job in jobs):
                    break
                if counts["ingest"] >= 2 and not killed:  # noqa: PLR2004 - in the midst of it
                    killed = True
                    bars.console.print(f"  {self._kill_dispatcher(system)}", markup=False, highlight=False)
                self._expect(time.monotonic() - began < PATIENCE_SECONDS, f"the backfill ends; so far {dict(counts)}")
                time.sleep(0.3)

    def _follow(self, system: Running) -> None:
        self._heading("The tip, followed through reorgs; what is final is compacted, what is large is told")
        head = self._mined(system, 20)
        self._line(self._kill_runner(system))
        self._devchain.reorg(3)
        self._line(f"reorg: the last 3 blocks below {head:,} are replaced by others")
        head = self._mined(system, 30)
        self._wait(lambda: self._quiet(system), "what was found is told")
        left = self._devchain.describe()["branch"]
        self._devchain.reorg(11)
        self._followed_to_head(system)
        self._wait(lambda: self._quiet(system), "what was found is told")
        self._devchain.switch(left, head + 5)
        self._line(f"reorg: the last 11 blocks below {head:,} are replaced by others, and come back as they were")
        head = self._mined(system, 90)
        ranges = (head - FINALITY + 1 - PAST) // RANGE
        self._wait(lambda: self._completed(system)["compact"] >= ranges, "what is final is compacted")
        self._wait(lambda: self._quiet(system), "everything that follows from it is done")
        self._line(f"the hot tables stand at block {head:,}; {ranges} ranges of {RANGE} final blocks are Parquet now")

    def _kill_runner(self, system: Running) -> str:
        """In the midst of a function: it is tried again, and finds what it had found."""
        for _ in range(5):
            self._devchain.mine(10)
            self._wait(lambda: bool(system.tasks(DAG, job="large_transfers", status="Running")), "a function runs")
            self._killed(system, "runner")
            self._wait(lambda: self._quiet(system), "what was interrupted is done")
            again = [one for one in system.tasks(DAG, job="large_transfers") if one["attempt"] > 1]
            if again:
                self._followed_to_head(system)
                return f"kill -9 of the runner while code of users ran: tried again, by itself, {len(again)} of them"
        raise SetupError("the demo expected that a function was interrupted, and none was")

    def _alerts(self, system: Running) -> None:
        self._heading("Alerts: rows that code of users found in a sandbox, told once")
        chain, head = self._devchain.chain(), self._devchain.describe()["head"]
        self._wait(lambda: raised(system, chain, self._hook, PAST, head).all_told, "every large transfer is told of")
        found = raised(system, chain, self._hook, PAST, head)
        self._expect(found.rows == found.keys, f"{found.rows} rows are as many events, not {found.keys}")
        self._expect(not found.doubled and not self._hook.refused, "no alert is told under two ids, or unsigned")
        gone = f"{found.orphaned} of them of blocks that a reorg took away"
        self._line(f"alert_events         {found.rows} rows, {found.keys} different events, {gone}")
        self._line(f"where severity =     'critical': {found.critical}, each told once to the webhook, signed")
        example = self._hook.told[0]["event"]
        paid = example["payload"]
        self._line(f"such as              block {example['block_number']:,}: {paid['amount']} of {paid['token']}")
        task = next(one for one in system.tasks(DAG, job="large_transfers", status="Completed"))
        for line in system.trace("task", "logs", task["id"])["lines"][-1:]:
            self._line(f"trace task logs      {line['text']}")

    def _mined(self, system: Running, blocks: int) -> int:
        """Mine, and wait until the follower has written the new head; its number."""
        self._devchain.mine(blocks)
        return self._followed_to_head(system)

    def _followed_to_head(self, system: Running) -> int:
        head = int(self._devchain.describe()["head"])
        self._wait(lambda: self._followed(system) == head, f"block {head} is followed")
        return head

    def _datasets(self, system: Running) -> None:
        self._heading("Every dataset, checked row for row against the chain itself")
        table = Table(box=None, pad_edge=False, padding=(0, 2))
        for column in ("dataset", "rows", "blocks", "commits", "equals the chain"):
            table.add_column(column, justify="right" if column in {"rows", "commits"} else "left")
        for seen in check_datasets(system, self._devchain):
            self._expect(seen.equal, f"{seen.name} equals the chain: {seen.how}")
            table.add_row(f"  {seen.name}", f"{seen.rows:,}", seen.blocks, str(seen.commits), seen.how)
        self._console.print(table)

    def _explain(self, system: Running) -> None:
        self._heading("trace why transfers 0-249")
        for step in system.trace("why", "transfers", "0-249")["steps"]:
            self._line(f"{step['kind']:<8} {step['sentence']}")

    def _kill_dispatcher(self, system: Running) -> str:
        began = time.monotonic()
        old, now = self._killed(system, "dispatcher")
        return f"kill -9 of the Dispatcher: {old} is gone, {now} took over in {time.monotonic() - began:.1f} s"

    def _killed(self, system: Running, name: str) -> tuple[int, int]:
        """By -9, and back again: the old process and the new one."""
        old = int(system.process(name)["pid"])
        os.kill(old, signal.SIGKILL)

        def is_back() -> bool:
            now = system.process(name)
            return bool(now["state"] == "ready" and now["pid"] != old)

        self._wait(is_back, f"the {name} comes back")
        return old, int(system.process(name)["pid"])

    def _completed(self, system: Running) -> Counter[str]:
        return Counter(task["job"] for task in system.tasks(DAG, status="Completed"))

    def _quiet(self, system: Running) -> bool:
        failed = [task for dag in (DAG, "alerts") for task in system.tasks(dag, status="Failed")]
        self._expect(not any(task["next_retry_at"] is None for task in failed), f"no task fails for good: {failed}")
        statuses = [(dag, status) for dag in (DAG, "alerts") for status in ("Queued", "Running")]
        busy = [task for dag, status in statuses for task in system.tasks(dag, status=status)]
        return not failed and not [task for task in busy if task["job"] != "follow"]

    def _followed(self, system: Running) -> int | None:
        for task in system.tasks(DAG, job="follow", status="Running"):
            progress: dict[str, Any] = system.get(f"/v1/tasks/{task['id']}").json().get("progress") or {}
            return progress.get("done")
        return None

    def _wait(self, so: Any, promise: str) -> None:
        began = time.monotonic()
        while not so():
            self._expect(time.monotonic() - began < PATIENCE_SECONDS, promise)
            time.sleep(0.2)

    def _heading(self, title: str) -> None:
        self._console.print(f"\n[bold]{title}[/]")

    def _line(self, line: str) -> None:
        self._console.print(f"  {line}", markup=False, highlight=False)

    def _expect(self, so: bool, promise: str) -> None:
        if not so:
            raise SetupError(f"the demo expected that {promise}, and it is not so")
