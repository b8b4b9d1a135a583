"""Replaces `abi_file: token.json` in a DAG by `abi: '...'`, the events of that file, before the DAG is sent or checked.

So the hash of a deployed DAG covers the ABI, and the file is not needed again. Line numbers do not change, so that
errors point to the right lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracelake.cli.yaml_nodes import composed, entry, items, pairs
from tracelake.errors import InvalidAbi, Problem

FIELD = "abi_file"


def with_abi_files(text: str, folder: Path, problems: list[Problem]) -> str:
    """Returns the DAG with its ABIs, which must be in `folder` or below it. Invalid YAML is left to the check.

    An ABI that cannot be used is added to `problems`, and its field is not changed.
    """
    # From the end, so that earlier positions stay valid.
    for place, key, value in reversed(list(_named(text))):
        try:
            events = _events(folder, str(value.value))
        except InvalidAbi as error:
            mark = value.start_mark
            problems.append(
                Problem(
                    line=mark.line + 1,
                    column=mark.column + 1,
                    field=f"jobs[{place}].config.{FIELD}",
                    code="bad_abi_file",
                    reason=f"{error.message} ({error.where})" if error.where else error.message,
                    suggestion=error.hint,
                )
            )
            continue
        quoted = "'" + events.replace("'", "''") + "'"
        text = text[: value.start_mark.index] + quoted + text[value.end_mark.index :]
        text = text[: key.start_mark.index] + "abi" + text[key.end_mark.index :]
    return text


def _named(text: str) -> Iterator[tuple[int, Any, Any]]:
    """The index of the job, and the key and value nodes, of each `abi_file` in a config."""
    for place, job in enumerate(items(entry(composed(text), "jobs"))):
        for key, value in pairs(entry(job, "config")):
            if key.value == FIELD and isinstance(value.value, str):
                yield place, key, value


def _events(folder: Path, name: str) -> str:
    """The events that the file declares, as JSON; functions and errors are left out."""
    from tracelake.chain.abi.events import abi_in, read_abi

    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidAbi(
            "an ABI file must be in the folder of its DAG, or below it", where=name, hint="copy the file there"
        )
    document = abi_in(path)
    read_abi(document)
    entries = document["abi"] if isinstance(document, dict) else document
    events = [item for item in entries if isinstance(item, dict) and item.get("type") == "event"]
    try:
        return json.dumps(events, separators=(",", ":"), ensure_ascii=True)
    except RecursionError:
        raise InvalidAbi("it is nested too deeply", where=name) from None
