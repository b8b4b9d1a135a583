"""`trace invalidate`: invalidate a range or a partition of a dataset."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

Dataset = Annotated[str, typer.Argument(help="The dataset's name or uuid.", metavar="DATASET", show_default=False)]
Range = Annotated[
    str | None, typer.Option("--range", help="The blocks, both ends included.", metavar="A-B", show_default=False)
]
Partition = Annotated[
    str | None, typer.Option("--partition", help="A partition with a label.", metavar="KEY", show_default=False)
]
Reason = Annotated[
    str, typer.Option("--reason", help="The reason, which is stored.", metavar="TEXT", show_default=False)
]


def invalidate(
    dataset: Dataset,
    *,
    reason: Reason,
    blocks: Range = None,
    partition: Partition = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Invalidate a range, or a partition: every job that reads it recomputes exactly that. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user.datasets import InvalidateAnswer, InvalidateRequest

    if (blocks is None) == (partition is None):
        raise BadInput("give one of --range and --partition", where="--range, --partition")
    start, end = parse_partition_key(blocks).edges if blocks else (None, None)
    request = InvalidateRequest(start=start, end=end, partition=partition, reason=reason, request_id=uuid4())
    with remote(home) as gateway:
        done = gateway.call("invalidate", InvalidateAnswer, body=request, dataset=dataset)
    render.answer(
        done,
        f"{blocks or partition} of {dataset} is invalidated ({done.invalidation_id}); its readers recompute it",
        in_json=json,
    )
