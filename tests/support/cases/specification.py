"""Every JSON example of the specification, word for word, and as a message once its placeholders are filled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ID: Final = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
FILE: Final = Path(__file__).with_name("specification_examples.json")
TEXTS: Final[Mapping[str, str]] = {
    load["example"]: load["text"] for load in json.loads(FILE.read_text(encoding="utf-8"))
}
"""By document and place: `001/2` is the second of document 001."""
FILLED: Final = (
    (r'"uuid"', f'"{ID}"'),
    (r"\{(dataset_uuid|dataset_version|task_id)\}", ID),
    (r"\{attempt\}", "1"),
    (r"\{bundle\}", "detector"),
    (r'"inputs": \[\{ "\.\.\.": "\.\.\." \}\]', f'"inputs": [{{"dataset_uuid": "{ID}", "dataset_version": "{ID}"}}]'),
)
BLOCK: Final = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def variants(example: str) -> list[Any]:
    """The example as JSON with its placeholders filled; one for each of the words that it offers for a field."""
    text = TEXTS[example]
    for placeholder, value in FILLED:
        text = re.sub(placeholder, value, text)
    choice = re.search(r'"(\w+(?:\|\w+)+)"', text)
    return (
        [json.loads(text.replace(choice[1], word)) for word in choice[1].split("|")] if choice else [json.loads(text)]
    )


def has_shape(example: Any, real: Any) -> bool:
    """Whether a message of ours has every field of the example, of the same JSON type or empty; it may have more."""
    if isinstance(example, dict) and "..." not in example:
        return isinstance(real, dict) and all(
            name in real and has_shape(part, real[name]) for name, part in example.items()
        )
    return real is None or isinstance(real, type(example))
