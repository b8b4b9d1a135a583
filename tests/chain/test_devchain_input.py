"""Wrong arguments of `trace devchain` get a readable error, and no other file is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.chain.devchain import running
from tests.support.waiting import SECONDS
from tracelake.errors import InvalidRequest

DEVCHAIN = [sys.executable, "-m", "tracelake", "devchain"]


def start(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEVCHAIN, *words], capture_output=True, text=True, check=False, timeout=SECONDS, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    "content",
    [b"my only copy of something", b"two lines\nof a letter", b"two lines\nof a letter\n", b"\xff\xfe\x00no text"],
)
def test_a_file_that_is_no_chain_s_history_is_refused_and_left_as_it_was(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "letter.txt"
    file.write_bytes(content)
    output = start("--state", str(file), "--port", "0")
    assert (output.returncode, "Traceback" in output.stderr) == (1, False), output.stderr
    assert "not the history of a dev chain" in output.stderr
    assert file.read_bytes() == content


def test_a_first_line_that_a_crash_cut_short_is_begun_anew(tmp_path: Path) -> None:
    state = tmp_path / "chain.jsonl"
    state.write_text('{"seed": 7, "chain_')
    with running(blocks=3, state=state) as chain:
        assert chain.describe()["head"] == 3
    assert len(state.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--port", "99999"), "--port"),
        (("--port", "-1"), "--port"),
        (("--block-time", "-1"), "--block-time"),
        (("--block-time", "nan"), "--block-time"),
        (("--block-time", "inf"), "--block-time"),
        (("--chain-id", "-1"), "--chain-id"),
        (("--chain-id", "0"), "--chain-id"),
        (("--blocks", "-1"), "--blocks"),
        (("--finality", "-1"), "--finality"),
        (("--state", "/"), "/"),
        (("--state", "/nowhere/at/all/chain"), "/nowhere/at/all/chain"),
        (("--host", "no.such.host.invalid"), "--host"),
    ],
)
def test_an_impossible_option_is_refused_by_its_name(words: tuple[str, str], where: str) -> None:
    output = start("--port", "0", "--blocks", "1", *words)
    assert (output.returncode, "Traceback" in output.stderr) == (1, False), output.stderr
    assert f"where: {where}" in output.stderr


def test_an_input_that_is_at_its_end_from_the_beginning_ends_the_chain() -> None:
    output = start("--port", "0", "--blocks", "1", "--stop-with-stdin")
    assert (output.returncode, output.stderr) == (0, "")


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_is_handled_while_blocks_are_made(how: signal.Signals, code: int) -> None:
    process = subprocess.Popen([*DEVCHAIN, "--port", "0", "--blocks", "99999999999"], stderr=subprocess.PIPE)
    try:
        before = 0.0
        while before < 2.5:  # seconds of a processor: its modules are loaded by then
            time.sleep(0.1)
            ticks = Path(f"/proc/{process.pid}/stat").read_text().split()[13]
            before = int(ticks) / os.sysconf("SC_CLK_TCK")
        process.send_signal(how)
        _, output = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, b"Traceback" in output) == (code, False), output


@pytest.mark.parametrize(
    ("order", "value"), [("mine", {"blocks": -1}), ("finality", {"depth": -1}), ("set_head", {"number": -1})]
)
def test_an_order_to_go_backwards_is_refused_and_moves_nothing(order: str, value: dict[str, int]) -> None:
    with running(blocks=5) as chain:
        before = chain.describe()
        with pytest.raises(InvalidRequest, match="0 or more"):
            chain.order(order, **value)
        assert chain.describe() == before
