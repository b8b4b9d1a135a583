"""`trace diff`: compare a dataset at two commits, or in two generations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from tracelake.cli.options import Home, Json
from tracelake.domain.text.count_of import count_of

if TYPE_CHECKING:
    from tracelake.wire.user.diff import DiffAnswer, DiffSide

Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]
First = Annotated[
    str | None,
    typer.Argument(help="A commit, or the beginning of a generation's id.", metavar="[A]", show_default=False),
]
Second = Annotated[
    str | None, typer.Argument(help="What to compare it with, likewise.", metavar="[B]", show_default=False)
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Columns that identify a row: A,B. Without, those that the dataset is known by.",
        metavar="COLUMNS",
    ),
]
Release = Annotated[
    UUID | None,
    typer.Option(
        "--release", help="Instead of A and B: what serves, and what this release has built.", metavar="RELEASE"
    ),
]
Blocks = Annotated[str | None, typer.Option("--range", help="Only these blocks: A-B, both included.", metavar="RANGE")]
Rows = Annotated[int, typer.Option("--rows", help="How many differing rows to show.", min=0, max=100)]


def diff(
    dataset: Dataset,
    a: First = None,
    b: Second = None,
    *,
    release: Release = None,
    key: Key = None,
    blocks: Blocks = None,
    rows: Rows = 10,
    home: Home = None,
    json: Json = False,
) -> None:
    """Compare a dataset at two commits: schema, rows, keys, values by column, and sums.

    A and B are commits, or generations by the beginning of their id, as of their last commit. Without B, A is compared
    with what is served. Without both, what is served is compared with a newer generation that is being built; if there
    is none, with the commit before its last. Rows are compared by `--key`, or by the columns that the dataset is known
    by, or as a whole. The exit code is 1 if they differ.
    """
    from tracelake.cli import printing
    from tracelake.cli.api import remote
    from tracelake.wire.user.diff import DiffAnswer

    given = ("a", a), ("b", b), ("key", key), ("release", None if release is None else str(release))
    query = {name: value for name, value in given if value is not None}
    with remote(home) as gateway:
        asked = {**query, **_span(blocks), "rows": rows}
        answer = gateway.call("diff_dataset", DiffAnswer, query=asked, repeatable=True, dataset=dataset)
    if json:
        import msgspec

        printing.as_json(msgspec.to_builtins(answer))
    else:
        _show(answer)
    sys.exit(1 if _differ(answer) else 0)


def _span(blocks: str | None) -> dict[str, int]:
    if blocks is None:
        return {}
    from tracelake.domain.ranges import parse_partition_key

    start, end = parse_partition_key(blocks).edges
    return {"start": start, "end": end}


def _differ(answer: DiffAnswer) -> bool:
    return bool(answer.schema or answer.only_a or answer.only_b or answer.changed)


def _show(answer: DiffAnswer) -> None:
    from tracelake.cli import render

    what = "keys" if answer.key else "rows"
    render.pairs(
        [
            ("A", _side(answer.a)),
            ("B", _side(answer.b)),
            ("key", ", ".join(answer.key) or None),
            ("note", answer.note),
            ("not read", f"{answer.shared_rows:,} rows in files that both have" if answer.shared_rows else None),
            (f"{what} only in A", f"{answer.only_a:,}"),
            (f"{what} only in B", f"{answer.only_b:,}"),
            ("changed", f"{answer.changed:,} keys" if answer.key else None),
            ("equal", f"{answer.equal:,}"),
            ("not compared", ", ".join(answer.not_compared) or None),
        ]
    )
    if answer.schema:
        render.title("schema")
        render.table(("column", "A", "B"), [(item.column, item.a or "-", item.b or "-") for item in answer.schema])
    render.title("columns")
    render.table(
        ("column", "equal", "sum A", "sum B"),
        [
            (item.column, "" if item.share is None else f"{item.share:.4%}", _number(item.sum_a), _number(item.sum_b))
            for item in answer.columns
        ],
    )
    if answer.differing:
        render.title(f"differing {what}: the first {len(answer.differing)}")
        names = [item.column for item in answer.columns]
        render.table(("side", *names), [row for item in answer.differing for row in _lines(item.a, item.b)])


def _side(side: DiffSide) -> str:
    return f"commit {side.commit} of generation {side.dataset_version}, {count_of(side.rows, 'row')}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.6g}"


def _lines(a: list[Any] | None, b: list[Any] | None) -> list[tuple[str, ...]]:
    return [(side, *map(_text, values)) for side, values in (("A", a), ("B", b)) if values is not None]


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
