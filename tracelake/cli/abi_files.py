"""`abi_file: token.json` in a DAG becomes `abi: '...'`, the events of that file, before the DAG is sent or checked.

So what is deployed is whole: its hash covers the ABI itself, and nobody needs the file again. The lines stay where they
are, for whoever reads a refusal.
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
    """The DAG with its ABIs in it; they lie in `folder` or below. What is no YAML is left for the check to refuse.

    An ABI that cannot be used is noted in `problems` and stays as it is named.
    """
    # From the end, so that places before it stay right.
    for place, key, value in reversed(list(_named(text))):
        try:
            events = _events(folder, str(value.value))
        except InvalidAbi as wrong:
            mark = value.start_mark
            said = f"{wrong.message} ({wrong.where})" if wrong.where else wrong.message
            problems.append(
                Problem(
                    line=mark.line + 1,
                    column=mark.column + 1,
                    field=f"jobs[{place}].config.{FIELD}",
                    code="bad_abi_file",
                    reason=said,
                    suggestion=wrong.hint,
                )
            )
            continue
        quoted = "'" + events.replace("'", "''") + "'"
        text = text[: value.start_mark.index] + quoted + text[value.end_mark.index :]
        text = text[: key.start_mark.index] + "abi" + text[key.end_mark.index :]
    return text


def _named(text: str) -> Iterator[tuple[int, Any, Any]]:
    """The job's place, and key and value as they stand in the text, of each `abi_file` in a config."""
    for place, job in enumerate(items(entry(composed(text), "jobs"))):
        for key, value in pairs(entry(job, "config")):
            if key.value == FIELD and isinstance(value.value, str):
                yield place, key, value


def _events(folder: Path, name: str) -> str:
    """As the file declares them, as JSON; functions and errors of the contract are of no use here."""
    from tracelake.chain.abi import abi_in, read_abi

    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidAbi("an ABI lies beside its DAG, or below it", where=name, hint="copy the file there")
    document = abi_in(path)
    read_abi(document)
    entries = document["abi"] if isinstance(document, dict) else document
    events = [item for item in entries if isinstance(item, dict) and item.get("type") == "event"]
    try:
        return json.dumps(events, separators=(",", ":"), ensure_ascii=True)
    except RecursionError:
        raise InvalidAbi("it is nested too deeply", where=name) from None
