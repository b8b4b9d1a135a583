"""`trace udf`: code of users, from a folder to a bundle that jobs can name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tracelake.cli.commands.udf_test import run_here
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.udf.pack import Packed
    from tracelake.wire.user_bundles import BundleAnswer

app = typer.Typer(
    help="Your own code in a sandbox: build, test and push a bundle (docs/how-to/write_a_function.md).",
    no_args_is_help=True,
)


class Kind(StrEnum):
    PYTHON = "python"
    NODE = "node"
    BOOTSTRAP = "bootstrap"


Folder = Annotated[Path, typer.Argument(help="The folder that holds the code.", metavar="FOLDER", show_default=False)]
Source = Annotated[
    Path, typer.Argument(help="A zip, or a folder that is built first.", metavar="ZIP|FOLDER", show_default=False)
]
OfKind = Annotated[
    Kind | None, typer.Option("--kind", help="What runs it; unset: by what lies at the root.", show_default=False)
]
Handler = Annotated[
    str | None,
    typer.Option(
        "--handler", help="The function, as AWS Lambda names it; unset: main.handler.", metavar="MODULE.FUNCTION"
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", help="What jobs call it; unset: as the folder or zip.", metavar="NAME")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where the zip goes; unset: NAME.zip here.", metavar="FILE")
]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
CHUNK = 256 * 1024


@app.command("build")
def build(
    folder: Folder,
    *,
    kind: OfKind = None,
    handler: Handler = None,
    name: Name = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Make a bundle of a folder, without sending it anywhere.

    The same files give the same bytes, and so the same SHA-256: what a job names is what you tested. The author's SDK
    (`trace_udf`) is put in; caches, `.git`, `.venv`, `.env` and the like are left out; links are refused. Python finds
    `main.py`, Node `main.js` (or `index.js`), and any executable called `bootstrap` runs as it is, as on AWS Lambda.
    """
    from tracelake.udf.pack import pack

    called = _name(name, folder)
    packed = pack(folder, _kind(kind), handler)
    target = output or Path(f"{called}.zip")
    try:
        target.write_bytes(packed.archive)
    except OSError as wrong:
        raise BadInput(f"the zip cannot be written: {wrong.strerror}", where=str(target)) from None
    _say(called, packed, {"file": str(target)}, json=json)


@app.command("push", short_help="Send a bundle to the running system, for jobs to name.")
def push(
    source: Source,
    *,
    name: Name = None,
    kind: OfKind = None,
    handler: Handler = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Send a bundle to the system that runs, which checks it: from then on jobs can name it.

    Prints what to put into the DAG. The same content again is the same bundle, and is not sent twice. Takes a writer.
    """
    from tracelake.cli.api import remote

    called = _name(name, source)
    packed = _packed(source, kind, handler)
    with remote(home) as gateway:
        done = push_bundle(gateway, called, packed, quiet=json)
    _say(done.name, packed, {"id": str(done.id), "status": done.status}, json=json)


@app.command("list", short_help="List bundles, the newest first.")
def list_bundles(name: Name = None, limit: Limit = 50, home: Home = None, json: Json = False) -> None:
    """List bundles, the newest first: name, kind, size, hash and whether jobs can use them."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_bundles import BundleList

    with remote(home) as gateway:
        found = gateway.ask("list_bundles", BundleList, query={"name": name, "limit": limit})
    if json:
        render.as_json(found)
        return
    if not found.bundles:
        render.note("there is no bundle; `trace udf push FOLDER` brings one")
        return
    render.table(
        ("name", "kind", "bytes", "sha256", "status", "reason", "by", "at"),
        [
            (
                bundle.name,
                bundle.kind,
                bundle.size_bytes,
                bundle.sha256,
                bundle.status,
                bundle.reason,
                bundle.created_by,
                bundle.created_at,
            )
            for bundle in found.bundles
        ],
    )


app.command("test", short_help="Run a bundle here, and show what it would do.")(run_here)


def push_bundle(gateway: Any, name: str, packed: Packed, *, quiet: bool) -> BundleAnswer:
    """Announced, sent if it is wanted, judged; it is ready, or refused here."""
    done = _pushed(gateway, name, packed, quiet=quiet)
    if done.status != "Ready":
        hint = "mend it and push it again; `trace udf build` checks the same rules"
        raise BadInput(f"the bundle was refused: {done.reason}", where=name, hint=hint)
    return done


def _pushed(gateway: Any, name: str, packed: Packed, *, quiet: bool) -> BundleAnswer:
    from tracelake.wire.user_bundles import BundleAnswer, BundleRequest

    archive = packed.archive
    wish = BundleRequest(
        name=name, kind=packed.kind, sha256=hashlib.sha256(archive).hexdigest(), size_bytes=len(archive)
    )
    made: BundleAnswer = gateway.ask("announce_bundle", BundleAnswer, body=wish)
    if made.upload is None:
        return made
    gateway.send("upload_bundle", BundleAnswer, _shown(archive, quiet=quiet), len(archive), bundle=made.id)
    done: BundleAnswer = gateway.ask("finalize_bundle", BundleAnswer, bundle=made.id)
    return done


def _shown(archive: bytes, *, quiet: bool) -> Iterator[bytes]:
    """The bytes, piece by piece, with a bar for eyes."""
    from rich.progress import Progress

    from tracelake.cli import printing

    with Progress(console=printing.err, transient=True, disable=quiet or not printing.err.is_terminal) as bar:
        sending = bar.add_task("sending", total=len(archive))
        for at in range(0, len(archive), CHUNK):
            yield archive[at : at + CHUNK]
            bar.advance(sending, CHUNK)


def _packed(source: Path, kind: Kind | None, handler: str | None) -> Packed:
    from tracelake.udf.pack import judged, pack

    if source.is_dir():
        return pack(source, _kind(kind), handler)
    try:
        archive = source.read_bytes()
    except OSError as wrong:
        raise BadInput(f"the bundle cannot be read: {wrong.strerror}", where=str(source)) from None
    return judged(archive, _kind(kind), handler)


def _kind(kind: Kind | None) -> Any:
    return cast("Any", kind.value if kind else None)


def _name(given: str | None, source: Path) -> str:
    name = given or re.sub(r"[^a-z0-9]+", "_", source.resolve().stem.lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,127}", name):
        raise BadInput(
            f"{name!r} is no name for a bundle", where="--name", hint="lower snake case, such as my_detector"
        )
    return name


def _say(name: str, packed: Packed, more: dict[str, str], *, json: bool) -> None:
    from tracelake.cli import printing

    sha256 = hashlib.sha256(packed.archive).hexdigest()
    told = {
        "name": name,
        "kind": packed.kind,
        "handler": packed.handler,
        "size_bytes": len(packed.archive),
        "files": len(packed.bundle.files),
        "unpacked_bytes": packed.bundle.unpacked_bytes,
        "sha256": sha256,
        **more,
    }
    if json:
        printing.as_json(told)
        return
    for field, value in told.items():
        printing.out.print(f"{field:15} {value}", markup=False)
    printing.out.print("\nPut into the job:\n", markup=False)
    printing.out.print(f"    operator: udf\n    runtime: lambda\n    udf:\n      bundle: {name}", markup=False)
    printing.out.print(f'      sha256: "{sha256}"\n      handler: {packed.handler}', markup=False)
