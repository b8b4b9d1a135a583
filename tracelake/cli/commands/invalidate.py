"""`trace invalidate`: say that a range of a dataset no longer holds."""

from __future__ import annotations

from typing import Annotated
from uuid import uuid4

import typer

from tracelake.cli.options import Home, Json

Dataset = Annotated[str, typer.Argument(help="The dataset's name or uuid.", metavar="DATASET", show_default=False)]
Range = Annotated[str, typer.Option("--range", help="The blocks, both ends in it.", metavar="A-B", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept.", metavar="TEXT", show_default=False)]


def invalidate(dataset: Dataset, blocks: Range, reason: Reason, home: Home = None, json: Json = False) -> None:
    """Say that a range no longer holds: every job that reads it does exactly that range again. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user_datasets import InvalidateAnswer, InvalidateRequest

    start, end = parse_partition_key(blocks).edges
    wish = InvalidateRequest(start=start, end=end, reason=reason, request_id=uuid4())
    with remote(home) as gateway:
        done = gateway.ask("invalidate", InvalidateAnswer, body=wish, dataset=dataset)
    if json:
        render.as_json(done)
    else:
        render.note(f"{blocks} of {dataset} no longer holds ({done.invalidation_id}); its readers do it again")
