"""`trace verify`: verify a dataset's ledger and files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelake.cli.api import Remote
    from tracelake.wire.user.ledger import VerifyPage

Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]
Rows = Annotated[bool, typer.Option("--rows", help="Also read the rows of every file, and count them.")]
After = Annotated[int, typer.Option("--after", help="Begin behind this commit.", metavar="COMMIT", min=0)]

COUNTS = ("commits", "unchained", "files", "bytes", "rows", "removed")


def verify(dataset: Dataset, *, rows: Rows = False, after: After = 0, home: Home = None, json: Json = False) -> None:
    """Verify a dataset: recompute the hashes that link its commits, and read every file that a commit wrote.

    A changed, missing or added file and a changed, missing or swapped entry of the ledger are reported, and the exit
    code is then 1. Files that retention has deleted are counted as such, which is no damage. With --rows, the rows of
    Parquet files are counted, and their block numbers compared with their partitions.
    """
    from tracelake.cli import printing, render
    from tracelake.cli.api import remote

    counts, damages = dict.fromkeys(COUNTS, 0), list[Any]()
    with remote(home) as gateway:
        for page in _pages(gateway, dataset, rows=rows, after=after, quiet=json):
            counts = {name: counts[name] + getattr(page, name) for name in COUNTS}
            damages += page.damages
    if json:
        import msgspec

        found = {"dataset": dataset, "rows_read": rows, **counts, "damages": msgspec.to_builtins(damages)}
        printing.as_json(found)
    else:
        _show(counts, damages, rows=rows)
        if not damages:
            render.note("no damage found")
    sys.exit(1 if damages else 0)


def _pages(gateway: Remote, dataset: str, *, rows: bool, after: int, quiet: bool) -> Iterator[VerifyPage]:
    from rich.progress import Progress

    from tracelake.cli import printing
    from tracelake.cli.api import next_page
    from tracelake.wire.user.ledger import VerifyPage

    following: int | None = after
    with Progress(console=printing.err, transient=True, disable=quiet or not printing.err.is_terminal) as bar:
        shown = bar.add_task("verifying commits", total=None)
        while following is not None:
            query = {"after": following, "rows": str(rows).lower()}
            page = gateway.call("verify_dataset", VerifyPage, query=query, repeatable=True, dataset=dataset)
            following = next_page(page.next, following)
            bar.update(shown, total=page.last_commit - after, advance=page.commits)
            yield page


def _show(counts: dict[str, int], damages: list[Any], *, rows: bool) -> None:
    from tracelake.cli import render

    unchained, removed = counts["unchained"], counts["removed"]
    render.pairs(
        [
            ("commits", counts["commits"]),
            ("before the ledger", f"{unchained} of them: only their files were verified" if unchained else None),
            ("files", f"{counts['files']}, {counts['bytes']:,} bytes"),
            ("rows", f"{counts['rows']:,}" if rows else None),
            ("removed", f"{removed} files of replaced partitions, by retention" if removed else None),
        ]
    )
    if damages:
        render.title(f"damaged: {len(damages)}")
        render.table(
            ("commit", "kind", "message", "where"),
            [(damage.commit, damage.kind, damage.message, damage.where) for damage in damages],
            whole=("where",),
        )
