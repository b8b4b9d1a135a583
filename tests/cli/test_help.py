"""`--help` as a newcomer reads it: on a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tracelake.cli.app import app
from tracelake.cli.grouped_help import GROUPS

TRACE: Any = typer.main.get_command(app)
COLUMNS = 80


def families(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every verb that has verbs below it, by what is typed."""
    if hasattr(command, "commands"):
        yield words
        for name, inner in command.commands.items():
            yield from families(inner, (*words, name))


def listed(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    message = CliRunner().invoke(app, [*words, "--help"])
    assert message.exit_code == 0, message.output
    return str(message.output).partition("--help")[2].splitlines()[1:]


def test_every_verb_stands_in_one_group_of_the_help() -> None:
    grouped = Counter(name for names in GROUPS.values() for name in names)
    verbs = Counter(name for name, verb in TRACE.commands.items() if not verb.hidden)
    assert grouped == verbs, "name the verb in a group of cli/grouped_help.py"


def test_the_help_shows_every_group_and_every_verb_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listed((), monkeypatch)
    wanted = [word for title, names in GROUPS.items() for word in (f"{title}:", *names)]
    shown = [line for line in lines if line]
    assert [line if line.endswith(":") else line.split()[0] for line in shown[: len(wanted)]] == wanted


@pytest.mark.parametrize("words", list(families(TRACE)), ids=lambda words: " ".join(("trace", *words)))
def test_what_a_verb_does_is_said_on_one_line_and_not_cut_off(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = TRACE
    for word in words:
        inner = inner.commands[word]
    lines = [line for line in listed(words, monkeypatch) if line.startswith("  ")]
    for name, verb in inner.commands.items():
        if verb.hidden:
            continue
        (line,) = [line for line in lines if line.split()[0] == name]
        assert line.endswith("."), f"{line!r} goes on, or is cut off: give it a short_help"
        assert not line.endswith("..."), f"{line!r} is cut off: give it a short_help"
        assert len(line) <= COLUMNS
