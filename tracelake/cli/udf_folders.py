"""`udf: {folder: detector}` in a DAG becomes `udf: {bundle: detector, sha256: ...}`, the folder's bundle.

So what is deployed names its code by content, and whoever writes the DAG need not. `trace dag deploy` also pushes the
bundles; the same folder again is the same bundle, and is not sent twice. The lines stay where they are, for whoever
reads a refusal.
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
    """The DAG with its bundles' hashes in it, and the bundles; the folders lie in `folder` or below.

    A folder that cannot be a bundle is noted in `problems` and stays as it is named.
    """
    made: list[FromFolder] = []
    for place, udf, key, value in reversed(list(_named(text))):  # from the end: places before it stay right
        try:
            found = _bundle(folder, udf, str(value.value))
        except (InvalidBundle, BadInput) as wrong:
            problems.append(_problem(place, value, wrong))
            continue
        sha256 = hashlib.sha256(found.packed.archive).hexdigest()
        said = f'bundle: {found.name}, sha256: "{sha256}"'
        text = text[: key.start_mark.index] + said + text[value.end_mark.index :]
        made.append(found)
    return text, made[::-1]


def _named(text: str) -> Iterator[tuple[int, Any, Any, Any]]:
    """The job's place, its `udf`, and key and value of `folder` in it."""
    for place, job in enumerate(items(entry(composed(text), "jobs"))):
        udf = entry(job, "udf")
        for key, value in pairs(udf):
            if key.value == FIELD and isinstance(value.value, str):
                yield place, udf, key, value


def _bundle(beside: Path, udf: Any, name: str) -> FromFolder:
    from tracelake.udf.pack import pack

    if not udf.flow_style or entry(udf, "bundle") is not None or entry(udf, "sha256") is not None:
        raise BadInput("a folder is named in one line, and its bundle follows from it", hint=f"write it {SHORT}")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BadInput("the code lies beside its DAG, or below it", hint="copy the folder there")
    handler = entry(udf, "handler")
    packed = pack(beside / name, None, None if handler is None else str(handler.value))
    return FromFolder(re.sub(r"[^a-z0-9]+", "_", Path(name).name.lower()).strip("_"), packed)


def _problem(place: int, value: Any, wrong: BadInput) -> Problem:
    return Problem(
        line=value.start_mark.line + 1,
        column=value.start_mark.column + 1,
        field=f"jobs[{place}].udf.{FIELD}",
        code="bad_udf_folder",
        reason=f"{wrong.message} ({wrong.where})" if wrong.where else wrong.message,
        suggestion=wrong.hint,
    )
