"""Capability tokens a second, by signer: `python -m bench.tokens [--size N]`.

PEM files, a key of KMS (one request for each token), and data keys that a key of KMS encrypts. KMS is moto, in a
process of its own: the rate of `kms` is moto's, and of AWS only that there is one request a token is shown. Sixteen
tokens are signed at a time, as for a batch of claims. The signers take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from bench.queue import keys_of_aws
from bench.report import report
from tests.support.aws.moto import running_moto
from tests.support.identity.signers import Signers, kms_settings, kms_signers, pem_signers, sealed_signers
from tests.support.identity.tokens import CLAIMS
from tracelake.capability.claims import mint
from tracelake.ports import Signer

TURNS = 5
AT_ONCE = 16


async def main(moto: str, size: int) -> None:
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="trace-bench-")))
        kinds: dict[str, Signers] = {
            "pem": pem_signers(folder / "keys"),
            "kms": await opened.enter_async_context(kms_signers(kms_settings(moto))),
            "kms_sealed": await opened.enter_async_context(sealed_signers(moto, folder / "objects")),
        }
        signers = {name: await kind.signing() for name, kind in kinds.items()}
        turns = [{name: await _rate(signer, size) for name, signer in signers.items()} for _ in range(TURNS)]
    rates = {name: round(statistics.median(turn[name] for turn in turns)) for name in signers}
    shares = {name: round(statistics.median(turn[name] / turn["pem"] for turn in turns), 3) for name in signers}
    report("tokens", rates["kms_sealed"], "tokens/s", rates=rates, share_of_pem=shares, settings={"size": size})


async def _rate(signer: Signer, size: int) -> float:
    wanted = size if not signer.remote else max(AT_ONCE, size // 20)
    began = time.perf_counter()
    for _ in range(wanted // AT_ONCE):
        await asyncio.gather(*(mint(signer, CLAIMS) for _ in range(AT_ONCE)))
    return wanted // AT_ONCE * AT_ONCE / (time.perf_counter() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4_000, help="tokens in a turn")
    given = parser.parse_args()
    with running_moto() as url, keys_of_aws():
        uvloop.run(main(url, given.size))
