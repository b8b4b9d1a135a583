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
from trace_platform.lite.demo_check import check_datasets
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
        with running(blocks=PAST + 60, finality=FINALITY) as devchain:
            _Show(console, Home(folder / "home"), devchain).everything()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Show:
    def __init__(self, console: Console, home: Home, devchain: Devchain) -> None:
        self._console = console
        self._home = home
        self._devchain = devchain

    def everything(self) -> None:
        self._heading("Starting from nothing: a chain, two Postgres servers, six processes, certificates and keys")
        self._line(f"a chain of {PAST + 60:,} blocks with token transfers: {self._devchain.url}")
        pool = {
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={self._devchain.url}",
            "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(self._devchain.chain_id),
        }
        with up(self._home, self._line, pool) as system:
            self._knock(system)
            self._deploy(system)
            self._backfill(system)
            self._follow(system)
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
        self._heading("A DAG: backfill the past, follow the tip, compact, decode transfers, sum them up, check")
        file = self._home.root.parent / f"{DAG}.yaml"
        file.write_text(quickstart())
        deployed = system.trace("dag", "deploy", str(file), "--activate")
        self._line(f"deployed and activated: {', '.join(deployed['deployed']['jobs'])}")

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
        self._heading("The tip, followed through two reorgs; what is final is compacted")
        head = self._mined(system, 20)
        for depth in (3, 11):
            self._devchain.reorg(depth)
            self._line(f"reorg: the last {depth} blocks below {head:,} are replaced by others")
            head = self._mined(system, 30)
            self._line(f"the hot tables stand at block {head:,} of the new branch")
        head = self._mined(system, 60)
        ranges = (head - FINALITY + 1 - PAST) // RANGE
        self._wait(lambda: self._completed(system)["compact"] >= ranges, "what is final is compacted")
        self._wait(lambda: self._quiet(system), "everything that follows from it is done")
        self._line(f"{ranges} ranges of {RANGE} final blocks are Parquet now")

    def _mined(self, system: Running, blocks: int) -> int:
        """Mine, and wait until the follower has written the new head; its number."""
        head = int(self._devchain.mine(blocks)["head"])
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
        old = int(system.process("dispatcher")["pid"])
        os.kill(old, signal.SIGKILL)
        began = time.monotonic()
        while (now := system.process("dispatcher"))["state"] != "ready" or now["pid"] == old:
            self._expect(time.monotonic() - began < PATIENCE_SECONDS, "the Dispatcher comes back")
            time.sleep(0.05)
        return f"kill -9 of the Dispatcher: {old} is gone, {now['pid']} took over in {time.monotonic() - began:.1f} s"

    def _completed(self, system: Running) -> Counter[str]:
        return Counter(task["job"] for task in system.tasks(DAG, status="Completed"))

    def _quiet(self, system: Running) -> bool:
        failed = system.tasks(DAG, status="Failed")
        self._expect(not any(task["next_retry_at"] is None for task in failed), f"no task fails for good: {failed}")
        busy = [task for status in ("Queued", "Running") for task in system.tasks(DAG, status=status)]
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
