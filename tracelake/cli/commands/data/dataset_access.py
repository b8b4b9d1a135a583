"""`trace datasets access`: who may read a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user.identity import AccessAnswer

Dataset = Annotated[str, typer.Argument(help="Its name or uuid.", metavar="DATASET", show_default=False)]
Roles = str | None


def access(
    dataset: Dataset,
    set_: Annotated[Roles, typer.Option("--set", help="Only these roles.", metavar="ROLE,ROLE")] = None,
    add: Annotated[Roles, typer.Option("--add", help="These roles too.", metavar="ROLE,ROLE")] = None,
    remove: Annotated[Roles, typer.Option("--remove", help="No longer these roles.", metavar="ROLE,ROLE")] = None,
    *,
    everyone: Annotated[bool, typer.Option("--everyone", help="Every user of the organisation.")] = False,
    nobody: Annotated[bool, typer.Option("--nobody", help="Only admins.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Show who may read a dataset, or decide it, for admins. Admins read every published dataset.

    What an admin decides stays: `read_roles` of a DAG is a proposal for a new dataset, and a deploy that proposes
    something else says so and changes nothing.
    """
    from tracelake.cli.api import remote
    from tracelake.wire.user.identity import AccessAnswer, AccessChange

    with remote(home) as gateway:
        if not (everyone or nobody or set_ or add or remove):
            _show(gateway.call("show_access", AccessAnswer, dataset=dataset), in_json=json)
            return
        body = AccessChange(everyone=everyone, nobody=nobody, set=_roles(set_), add=_roles(add), remove=_roles(remove))
        _show(gateway.call("set_access", AccessAnswer, body=body, dataset=dataset), in_json=json)


def _roles(text: str | None) -> list[str] | None:
    return None if text is None else [role.strip().removeprefix("role:") for role in text.split(",")]


def _show(found: AccessAnswer, *, in_json: bool) -> None:
    from tracelake.cli import render

    if in_json:
        render.as_json(found)
        return
    readers = {"everyone": "every user", "nobody": "only admins", "unpublished": "no user: it is not published"}
    render.pairs(
        [
            ("dataset", found.name or found.dataset_uuid),
            ("read by", readers.get(found.readers) or f"{' or '.join(found.roles)}, and admins"),
            ("decided by", found.set_by or "its DAG, when it was new"),
            ("at", found.set_at),
        ]
    )
