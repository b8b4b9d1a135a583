"""A change of the quickstart's SQL: planned, built beside what serves, compared, promoted, and rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

from tracelake_demo.system import Running

AMOUNT: Final = "sum(value_decimal) AS amount"
DAILY: Final = "SELECT * FROM daily_volume ORDER BY day, token"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ShowChange:
    _system: Running
    _file: Path
    """The DAG that is changed."""
    _line: Callable[[str], None]
    _expect: Callable[[bool, str], None]

    def show(self) -> None:
        with self._querying() as answers:
            served = self._change()
        mixed = [rows for rows in answers if rows not in served]
        self._expect(bool(answers) and not mixed, f"every query sees the former rows or the new ones, not {mixed[:1]}")
        self._line(
            f"meanwhile            {len(answers)} queries saw the former rows or the new ones, and never a mixture"
        )

    @contextmanager
    def _querying(self) -> Iterator[list[Rows]]:
        """A user asks again and again: the answers."""
        answers: list[Rows] = []
        ended = Event()

        def ask() -> None:
            while not ended.is_set():
                answers.append(self._system.query(DAILY))

        with ThreadPoolExecutor(1) as beside:
            asking = beside.submit(ask)
            try:
                yield answers
            finally:
                ended.set()
            asking.result()

    def _change(self) -> tuple[Rows, Rows]:
        """The former rows, and the new ones."""
        system, file = self._system, self._file
        text = file.read_text()
        file.write_text(text.replace(AMOUNT, f"{AMOUNT}, max(value_decimal) AS largest"))
        plan = system.trace("plan", str(file))
        built = [row["dataset"] for row in plan["datasets"] if row["action"] != "carry on"]
        self._expect(built == ["daily_volume"], f"only daily_volume is built again, not {built}")
        self._line(f"trace plan           daily_volume is built again; {len(plan['datasets']) - 1} datasets carry on")
        before = system.query(DAILY)
        release = system.trace("deploy", str(file), "--plan", plan["hash"], "--wait")["release"]
        self._expect(release["state"] == "Ready", f"the release is ready: {release}")
        self._expect(system.query(DAILY) == before, "queries read the former rows until then")
        self._line(f"trace deploy         release {release['id'][:8]}... is ready; queries read the former rows")
        self._compare(release["id"])
        system.trace("release", "promote", release["id"])
        after = system.query(DAILY)
        self._expect(any(row["largest"] is not None for row in after), "the new column has values")
        self._line("trace release        promoted: daily_volume has a column `largest`, at once for everybody")
        system.trace("release", "rollback", release["id"])
        self._expect(system.query(DAILY) == before, "the former rows are back")
        self._line("                     rolled back: the former rows are back")
        return before, after

    def _compare(self, release: str) -> None:
        """The query was only extended: every row is as before."""
        (found,) = self._system.trace("release", "show", release, "--diff")["comparisons"]
        diff = found["result"]
        self._expect(found["state"] == "Done", f"{found['dataset']} was compared: {found['error']}")
        new = [change["column"] for change in diff["schema"]]
        self._expect(new == ["largest"], f"one column is new, not {new}")
        same = diff["rows_a"] == diff["rows_b"] == diff["equal"]
        self._expect(same, f"the other columns have the same values: {diff}")
        rows = f"all {diff['equal']:,} rows are equal in the columns that both have; `largest` is new"
        self._line(f"trace release show   with --diff: {rows}")
