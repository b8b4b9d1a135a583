"""`trace udf`: builds, tests, pushes and lists bundles of user code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tracelake.cli.commands.data.udf_runner_zip import write_runner_zip
from tracelake.cli.commands.data.udf_test import run_here
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.udf.pack import Packed
    from tracelake.wire.user.bundles import BundleAnswer

app = typer.Typer(
    help="User functions in sandboxes: build, test and push a bundle (docs/how-to/write_a_function.md).",
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
    Kind | None, typer.Option("--kind", help="The runtime; default: by the files at the root.", show_default=False)
]
Handler = Annotated[
    str | None,
    typer.Option(
        "--handler", help="The function, as AWS Lambda names it; default: main.handler.", metavar="MODULE.FUNCTION"
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", help="Its name in jobs; default: the name of the folder or zip.", metavar="NAME")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The zip file to write; default: NAME.zip here.", metavar="FILE")
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

    The same files give the same bytes and the same SHA-256: what a job names is what you tested. The SDK
    (`trace_udf`) is added; caches, `.git`, `.venv`, `.env` and the like are left out; links are refused. Python finds
    `main.py`, Node `main.js` (or `index.js`), and an executable named `bootstrap` runs directly, as on AWS Lambda.
    """
    from tracelake.udf.pack import pack

    bundle_name = _name(name, folder)
    packed = pack(folder, _kind(kind), handler)
    target = output or Path(f"{bundle_name}.zip")
    try:
        target.write_bytes(packed.archive)
    except OSError as error:
        raise BadInput(f"the zip cannot be written: {error.strerror}", where=str(target)) from None
    _print_result(bundle_name, packed, {"file": str(target)}, json=json)


@app.command("push", short_help="Send a bundle to the running system, for use in jobs.")
def push(
    source: Source,
    *,
    name: Name = None,
    kind: OfKind = None,
    handler: Handler = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Send a bundle to the running system, which checks it. Jobs can use it from then on.

    Prints what to put into the DAG. A bundle that the system has is not sent again. Needs the role writer.
    """
    from tracelake.cli.api import remote

    bundle_name = _name(name, source)
    packed = _packed(source, kind, handler)
    with remote(home) as gateway:
        done = push_bundle(gateway, bundle_name, packed, quiet=json)
    _print_result(done.name, packed, {"id": str(done.id), "status": done.status}, json=json)


@app.command("list", short_help="List bundles, the newest first.")
def list_bundles(name: Name = None, limit: Limit = 50, home: Home = None, json: Json = False) -> None:
    """List bundles, the newest first: name, kind, size, hash and whether jobs can use them."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.bundles import BundleList

    with remote(home) as gateway:
        found = gateway.call("list_bundles", BundleList, query={"name": name, "limit": limit})
    if render.json_or_empty(
        found, found.bundles, "there are no bundles; `trace udf push FOLDER` pushes one", in_json=json
    ):
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
app.command("runner-zip", short_help="Write the runner as a zip for AWS Lambda.")(write_runner_zip)


def push_bundle(gateway: Any, name: str, packed: Packed, *, quiet: bool) -> BundleAnswer:
    """Announced, sent if it is wanted, judged; it is ready, or refused here."""
    done = _pushed(gateway, name, packed, quiet=quiet)
    if done.status != "Ready":
        hint = "fix it and push it again; `trace udf build` checks the same rules"
        raise BadInput(f"the bundle was refused: {done.reason}", where=name, hint=hint)
    return done


def _pushed(gateway: Any, name: str, packed: Packed, *, quiet: bool) -> BundleAnswer:
    from tracelake.wire.user.bundles import BundleAnswer, BundleRequest

    archive = packed.archive
    request = BundleRequest(
        name=name, kind=packed.kind, sha256=hashlib.sha256(archive).hexdigest(), size_bytes=len(archive)
    )
    announced: BundleAnswer = gateway.call("announce_bundle", BundleAnswer, body=request)
    if announced.upload is None:
        return announced
    gateway.send("upload_bundle", BundleAnswer, _shown(archive, quiet=quiet), len(archive), bundle=announced.id)
    done: BundleAnswer = gateway.call("finalize_bundle", BundleAnswer, bundle=announced.id)
    return done


def _shown(archive: bytes, *, quiet: bool) -> Iterator[bytes]:
    """Yields the archive in chunks, with a progress bar."""
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
    except OSError as error:
        raise BadInput(f"the bundle cannot be read: {error.strerror}", where=str(source)) from None
    return judged(archive, _kind(kind), handler)


def _kind(kind: Kind | None) -> Any:
    return cast("Any", kind.value if kind else None)


def _name(name: str | None, source: Path) -> str:
    name = name or re.sub(r"[^a-z0-9]+", "_", source.resolve().stem.lower()).strip("_")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,127}", name):
        raise BadInput(
            f"{name!r} is not a valid bundle name", where="--name", hint="use lower snake case, such as my_detector"
        )
    return name


def _print_result(name: str, packed: Packed, more: dict[str, str], *, json: bool) -> None:
    from tracelake.cli import printing

    sha256 = hashlib.sha256(packed.archive).hexdigest()
    fields = {
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
        printing.as_json(fields)
        return
    for field, value in fields.items():
        printing.out.print(f"{field:15} {value}", markup=False)
    printing.out.print("\nPut into the job:\n", markup=False)
    printing.out.print(f"    operator: udf\n    runtime: lambda\n    udf:\n      bundle: {name}", markup=False)
    printing.out.print(f'      sha256: "{sha256}"\n      handler: {packed.handler}', markup=False)
