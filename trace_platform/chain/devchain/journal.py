"""What was done to a chain, one JSON line each: played again it makes the same chain. Also what `describe` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from trace_platform.chain.devchain.chain import Branch, Chain
from trace_platform.errors import InvalidRequest, SetupError, TraceError

MOVES = {
    "mine": ("blocks",),
    "set_head": ("number",),
    "reorg": ("depth", "blocks"),
    "switch": ("branch", "head"),
    "finality": ("depth",),
}
"""What can be done to a chain, and its parameters, all whole numbers."""


def move(chain: Chain, order: dict[str, Any]) -> None:
    """Do one of them."""
    what = order.get("do")
    if what not in MOVES:
        raise InvalidRequest(f"a chain cannot {what!r}", where="/do", hint=f"one of {', '.join(MOVES)}")
    given = {name: order[name] for name in MOVES[what] if order.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(f"{name} is a whole number", where=f"/{name}")
    if what == "finality":
        chain.finality = given.get("depth", chain.finality)
        return
    try:
        getattr(chain, what)(**given)
    except TypeError:
        raise InvalidRequest(f"{what} needs {MOVES[what][0]}", where=f"/{MOVES[what][0]}") from None


class Journal:
    """A file that grows by a line for each move; without a path, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def open(self, seed: int, chain_id: int, blocks: int, finality: int) -> Chain:
        """The chain as it was left, or a new one."""
        if self._path is None:
            return Chain(seed, chain_id, blocks, finality)
        lines = _whole_lines(self._path)
        chain = _played(self._path, lines, seed, chain_id) if lines else Chain(seed, chain_id, blocks, finality)
        self._file = self._path.open("a", encoding="utf-8")
        if not lines:
            self.note({"seed": seed, "chain_id": chain_id, "blocks": blocks, "finality": finality})
        return chain

    def note(self, order: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(order) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _whole_lines(path: Path) -> list[str]:
    """A line that a crash cut short never counted: it goes, so that the next one starts on its own."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


def _played(path: Path, lines: list[str], seed: int, chain_id: int) -> Chain:
    place = 1
    try:
        first = json.loads(lines[0])
        _expect_same(path, first, seed, chain_id)
        chain = Chain(seed, chain_id, first["blocks"], first["finality"])
        for place, line in enumerate(lines[1:], 2):  # noqa: B007 - where it went wrong
            move(chain, json.loads(line))
    except SetupError:
        raise
    except (ValueError, KeyError, TypeError, TraceError) as wrong:
        said = f"this is not the history of a dev chain ({wrong})"
        raise SetupError(said, where=f"{path}, line {place}", hint="remove it to begin anew") from None
    return chain


def _expect_same(path: Path, first: dict[str, Any], seed: int, chain_id: int) -> None:
    if (first["seed"], first["chain_id"]) != (seed, chain_id):
        raise SetupError(
            f"this is a chain with seed {first['seed']} and chain id {first['chain_id']}",
            where=str(path),
            hint="start with the same --seed and --chain-id, or with another file",
        )


def describe(chain: Chain) -> dict[str, Any]:
    """Everything that `rebuild` needs to make the same chain elsewhere."""
    return {
        "seed": chain.seed,
        "chain_id": chain.chain_id,
        "finality": chain.finality,
        "branch": chain.branch,
        "head": chain.head,
        "head_hash": chain.block(chain.head).hash,
        "branches": [{"parent": one.parent, "fork": one.fork, "head": one.head} for one in chain.branches],
    }


def rebuild(described: dict[str, Any]) -> Chain:
    """The same chain, made anew in this process."""
    chain = Chain(described["seed"], described["chain_id"], finality=described["finality"])
    chain.branches = [Branch(**one) for one in described["branches"]]
    chain.branch = described["branch"]
    chain.set_head(described["head"])
    return chain
