"""Replaces `udf: {folder: detector}` in a DAG by `udf: {bundle: detector, sha256: ...}`, the folder's bundle.

So a deployed DAG names its code by content. `trace dag deploy` also pushes the bundles; a bundle that the system has is
not sent again. Line numbers do not change, so that errors point to the right lines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelake.cli.yaml_nodes import composed, entry, items, pairs
from tracelake.errors import BadInput, InvalidBundle, Problem

if TYPE_CHECKING:
    from tracelake.udf.pack import Packed

FIELD = "folder"
SHORT = "in braces and without `bundle` or `sha256`: udf: {folder: detector}"


@dataclass(frozen=True)
class FromFolder:
    name: str
    packed: Packed


def with_udf_folders(text: str, folder: Path, problems: list[Problem]) -> tuple[str, list[FromFolder]]:
    """Returns the DAG with the hashes of its bundles, and the bundles. The code must be in `folder` or below it.

    A folder that cannot be a bundle is added to `problems`, and its field is not changed.
    """
    bundles: list[FromFolder] = []
    for place, udf, key, value in reversed(list(_named(text))):  # from the end: earlier positions stay valid
        try:
            bundle = _bundle(folder, udf, str(value.value))
        except (InvalidBundle, BadInput) as error:
            problems.append(_problem(place, value, error))
            continue
        sha256 = hashlib.sha256(bundle.packed.archive).hexdigest()
        reference = f'bundle: {bundle.name}, sha256: "{sha256}"'
        text = text[: key.start_mark.index] + reference + text[value.end_mark.index :]
        bundles.append(bundle)
    return text, bundles[::-1]


def _named(text: str) -> Iterator[tuple[int, Any, Any, Any]]:
    """The index of the job, its `udf`, and the key and value nodes of `folder` in it."""
    for place, job in enumerate(items(entry(composed(text), "jobs"))):
        udf = entry(job, "udf")
        for key, value in pairs(udf):
            if key.value == FIELD and isinstance(value.value, str):
                yield place, udf, key, value


def _bundle(beside: Path, udf: Any, name: str) -> FromFolder:
    from tracelake.udf.pack import pack

    if not udf.flow_style or entry(udf, "bundle") is not None or entry(udf, "sha256") is not None:
        raise BadInput("`folder` must be on one line, without `bundle` or `sha256`", hint=f"write it {SHORT}")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BadInput("the code must be in the folder of its DAG, or below it", hint="copy the folder there")
    handler = entry(udf, "handler")
    packed = pack(beside / name, None, None if handler is None else str(handler.value))
    return FromFolder(re.sub(r"[^a-z0-9]+", "_", Path(name).name.lower()).strip("_"), packed)


def _problem(place: int, value: Any, error: BadInput) -> Problem:
    return Problem(
        line=value.start_mark.line + 1,
        column=value.start_mark.column + 1,
        field=f"jobs[{place}].udf.{FIELD}",
        code="bad_udf_folder",
        reason=f"{error.message} ({error.where})" if error.where else error.message,
        suggestion=error.hint,
    )
