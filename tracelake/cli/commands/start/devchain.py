"""`trace devchain`: a simulated Ethereum chain for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake.cli import printing
from tracelake.cli.options import Json

if TYPE_CHECKING:
    from tracelake_devchain.chain import Chain

Port = Annotated[int, typer.Option("--port", help="The port to listen on; 0 takes a free one.", metavar="N")]
Host = Annotated[
    str, typer.Option("--host", help="The address to listen on. Commands are accepted from this machine only.")
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed makes the same chain on every machine.")]
ChainId = Annotated[int, typer.Option("--chain-id", help="The chain id.")]
Blocks = Annotated[int, typer.Option("--blocks", help="Height at the first start; about 3,000 are made in a second.")]
BlockTime = Annotated[
    float, typer.Option("--block-time", help="Seconds between new blocks, such as 0.1; 0: only on command.")
]
Finality = Annotated[int, typer.Option("--finality", help="Blocks from the head down to `finalized`.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Journal every change in this file, and continue from it at the next start.", metavar="FILE"
    ),
]
StopWithStdin = Annotated[
    bool, typer.Option("--stop-with-stdin", help="End when standard input closes: for programs that start it.")
]


def devchain(  # noqa: PLR0917 - typer names them all
    port: Port = 8545,
    host: Host = "127.0.0.1",
    seed: Seed = 7,
    chain_id: ChainId = 1337,
    blocks: Blocks = 1000,
    block_time: BlockTime = 0.0,
    finality: Finality = 64,
    state: State = None,
    stop_with_stdin: StopWithStdin = False,
    json: Json = False,
) -> None:
    """Serve a simulated Ethereum chain until Ctrl-C: with token transfers, and reorgs and faults on command.

    It serves JSON-RPC at `/` and at `/node/NAME` (any name: nodes can have different faults). Commands go to
    `/control` as JSON: {"do": "mine", "blocks": 5}, {"do": "reorg", "depth": 3}, {"do": "switch", "branch": 0},
    {"do": "set_head", "number": 90}, {"do": "finality", "depth": 8},
    {"do": "fault", "kind": "lie_hash", "node": "a", "times": 2}, {"do": "clear"}, {"do": "describe"}.
    docs/reference/devchain.md explains them.
    """
    from tracelake_devchain.server import Options, serve

    options = Options(host, port, seed, chain_id, blocks, block_time, finality, state, stop_with_stdin)
    serve(options, lambda url, chain: _print_facts(_facts(url, chain), in_json=json))
    if not json:
        printing.out.print("The chain has stopped.")


def _facts(url: str, chain: Chain) -> dict[str, Any]:
    facts = {"url": url, "chain_id": chain.chain_id, "seed": chain.seed, "head": chain.head}
    return facts | {"head_hash": chain.block(chain.head).hash}


def _print_facts(facts: dict[str, Any], *, in_json: bool) -> None:
    """Prints one line of JSON for a program, or instructions for a user."""
    import json
    import sys

    if in_json:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        return
    printing.out.print(
        f"[bold]Chain {facts['chain_id']}[/] (seed {facts['seed']}) at block {facts['head']}: {facts['url']}"
    )
    printing.out.print(f"  as a node:  {facts['url']}  or  {facts['url']}/node/NAME", markup=False)
    command = '{"do": "reorg", "depth": 3}'
    printing.out.print(f"  commands:   curl {facts['url']}/control --json '{command}'", markup=False)
    printing.out.print("  Ctrl-C stops it.", markup=False)
