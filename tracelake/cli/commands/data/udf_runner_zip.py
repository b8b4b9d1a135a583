"""`trace udf runner-zip`: writes the runner as a zip for AWS Lambda."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Annotated

import typer

from tracelake.cli.options import Json
from tracelake.errors import BadInput

Output = Annotated[Path, typer.Option("--output", "-o", help="The zip file to write.", metavar="FILE")]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        help="The authority that signed the certificates of the task APIs, if it is not a public one.",
        metavar="PEM",
    ),
]


def write_runner_zip(output: Output = Path("trace-runner.zip"), ca: Ca = None, *, json: Json = False) -> None:
    """Write the runner as a zip for AWS Lambda, and show what the function needs (docs/how-to).

    The same installed versions give the same bytes. The function must have the runtime and the architecture that are
    shown, which are those of this machine.
    """
    from tracelake.cli import printing
    from tracelake.udf.function_zip import CA, function_zip

    made = function_zip(ca)
    try:
        output.write_bytes(made.archive)
    except OSError as error:
        raise BadInput(f"the zip cannot be written: {error.strerror}", where=str(output)) from None
    fields = {
        "file": str(output),
        "size_bytes": len(made.archive),
        "unpacked_bytes": made.unpacked_bytes,
        "code_sha256": base64.b64encode(hashlib.sha256(made.archive).digest()).decode(),
        "handler": made.handler,
        "runtime": made.runtime,
        "architecture": made.architecture,
        **({"TRACE_TLS__CA": f"/var/task/{CA}"} if ca else {}),
    }
    if json:
        printing.as_json(fields)
        return
    for field, value in fields.items():
        printing.out.print(f"{field:15} {value}", markup=False)
