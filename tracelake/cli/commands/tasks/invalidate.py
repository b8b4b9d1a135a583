"""`trace invalidate`: invalidate a range of a dataset."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import typer

from tracelake.cli.options import Home, Json

Dataset = Annotated[str, typer.Argument(help="The dataset's name or uuid.", metavar="DATASET", show_default=False)]
Range = Annotated[
    str, typer.Option("--range", help="The blocks, both ends included.", metavar="A-B", show_default=False)
]
Reason = Annotated[
    str, typer.Option("--reason", help="The reason, which is stored.", metavar="TEXT", show_default=False)
]


def invalidate(dataset: Dataset, blocks: Range, reason: Reason, home: Home = None, json: Json = False) -> None:
    """Invalidate a range: every job that reads it recomputes exactly that range. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user_datasets import InvalidateAnswer, InvalidateRequest

    start, end = parse_partition_key(blocks).edges
    request = InvalidateRequest(start=start, end=end, reason=reason, request_id=uuid4())
    with remote(home) as gateway:
        done = gateway.call("invalidate", InvalidateAnswer, body=request, dataset=dataset)
    render.answer(
        done, f"{blocks} of {dataset} is invalidated ({done.invalidation_id}); its readers recompute it", in_json=json
    )
