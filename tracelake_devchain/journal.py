"""What was done to a chain, one JSON line each: played again it makes the same chain. Also what `describe` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tracelake.errors import InvalidRequest, SetupError, TraceError
from tracelake_devchain.chain import Branch, Chain

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
        if value < 0:
            raise InvalidRequest(f"{name} is 0 or more, not {value}", where=f"/{name}")
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
        first = {"seed": seed, "chain_id": chain_id, "blocks": blocks, "finality": finality}
        text = _read(self._path)
        whole = text[: text.rfind("\n") + 1]
        if not whole and not json.dumps(first).startswith(text):
            raise _foreign(self._path, 1, "it is one line, and not ours")
        lines = whole.splitlines()
        chain = _played(self._path, lines, seed, chain_id) if lines else Chain(seed, chain_id, blocks, finality)
        self._file = _opened(self._path, len(whole.encode()))
        if not lines:
            self.note(first)
        return chain

    def note(self, order: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(order) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise _foreign(path, 1, "it is no text") from None
    except OSError as error:
        raise _not_kept(path, error) from None


def _opened(path: Path, size: int) -> IO[str]:
    """Known to be ours by now. A line that a crash cut short never counted: it goes, and the next starts on its own."""
    try:
        file = path.open("a", encoding="utf-8")
        file.truncate(size)
    except OSError as error:
        raise _not_kept(path, error) from None
    return file


def _not_kept(path: Path, error: OSError) -> SetupError:
    message = f"the journal of the chain cannot be written: {error.strerror}"
    return SetupError(message, where=str(path), hint="--state must name a file in an existing folder")


def _foreign(path: Path, line: int, why: object) -> SetupError:
    message = f"this is not the history of a dev chain ({why})"
    return SetupError(message, where=f"{path}, line {line}", hint="choose another file, or remove it to start again")


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
    except (ValueError, KeyError, TypeError, TraceError) as error:
        raise _foreign(path, place, error) from None
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
        "branches": [{"parent": branch.parent, "fork": branch.fork, "head": branch.head} for branch in chain.branches],
    }


def rebuild(described: dict[str, Any]) -> Chain:
    """The same chain, made anew in this process."""
    chain = Chain(described["seed"], described["chain_id"], finality=described["finality"])
    chain.branches = [Branch(**item) for item in described["branches"]]
    chain.branch = described["branch"]
    chain.set_head(described["head"])
    return chain
