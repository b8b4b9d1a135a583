"""Every state of the certificates that a kill or damage can leave is repaired, or named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.identity.certificates import (
    DAY,
    NOW,
    YEAR,
    certificate,
    certificate_of,
    certificates,
    greet,
    key_of,
    killed_after,
    listener,
    works,
)
from tests.support.waiting import SECONDS
from tracelake.errors import SetupError
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.tls import client_context, server_context


def test_every_state_that_a_kill_can_leave_is_repaired(folder: Path) -> None:
    """Each write is a file beside, a rename, a next file: stop after each step, at first start and at both renewals."""
    moments = 0
    for begin in (None, NOW - 61 * DAY, NOW - 10 * YEAR + 119 * DAY):
        for step in range(100):
            shutil.rmtree(folder, ignore_errors=True)
            if begin is not None:
                ensure_certificates(folder, begin)
            finished = killed_after(step, folder)
            files = ensure_certificates(folder, NOW)
            assert works(files), f"begun {begin}, killed after step {step}"
            assert not list(folder.glob(".*.new")), "what a killed writer left is gone"
            if finished:
                break
            moments += 1
        else:
            pytest.fail("a run never finished")
    assert moments > 15, f"only {moments} moments were tried"


def test_a_kill_never_costs_a_good_authority(folder: Path) -> None:
    for step in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        files = ensure_certificates(folder, NOW - 61 * DAY)
        before = certificate(files.ca)
        finished = killed_after(step, folder)
        assert ensure_certificates(folder, NOW).notes == ()
        assert certificates(files.ca) == [before]
        if finished:
            return


@pytest.mark.parametrize(
    "damage", ["empty", "rubbish", "half", "no end", "another's key", "key only", "certificate only"]
)
@pytest.mark.parametrize("name", ["server.pem", "ca-key.pem"])
def test_a_damaged_file_is_replaced_with_a_note(folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    files = ensure_certificates(folder, NOW)
    authority = files.ca.read_bytes()
    ensure_certificates(tmp_path / "other", NOW)
    good, other = (folder / name).read_bytes(), (tmp_path / "other" / name).read_bytes()
    bad = {
        "empty": b"",
        "rubbish": os.urandom(700),
        "half": good[: len(good) // 4],
        "no end": good.replace(b"-----END", b"-----DNE"),
        "another's key": key_of(other) + certificate_of(good),
        "key only": key_of(good),
        "certificate only": certificate_of(good),
    }[damage]
    (folder / name).write_bytes(bad)
    mended = ensure_certificates(folder, NOW)
    assert works(mended)
    if name == "ca-key.pem" and damage == "key only":
        # The certificate stands in ca.pem too: the authority is good, and stays.
        assert mended.notes == ()
        assert files.ca.read_bytes() == authority
    else:
        assert any(name in note for note in mended.notes)
    if name == "server.pem":
        assert files.ca.read_bytes() == authority


@pytest.mark.parametrize(
    "damage", [None, b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_lost_public_file_is_written_again_from_the_same_authority(folder: Path, damage: bytes | None) -> None:
    files = ensure_certificates(folder, NOW)
    before, trusting = files.ca.read_bytes(), client_context(files.ca)
    if damage is None:
        files.ca.unlink()
    else:
        files.ca.write_bytes(damage)
    assert len(ensure_certificates(folder, NOW).notes) == (0 if damage is None else 1)
    assert files.ca.read_bytes() == before
    with listener(server_context(files)) as port:
        assert greet(port, trusting, "localhost") == b"hello"


def test_a_lost_authority_key_is_not_passed_over_in_silence(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    lost = certificate(files.ca)
    (folder / "ca-key.pem").unlink()
    mended = ensure_certificates(folder, NOW)
    assert ["new certificate authority" in note for note in mended.notes] == [True]
    assert certificates(files.ca)[1] == lost, "listeners that still serve the old certificate stay trusted"
    assert works(mended)


def test_a_server_pair_is_no_authority(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    shutil.copy(files.key, folder / "ca-key.pem")
    assert works(ensure_certificates(folder, NOW))


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be stored") as refused:
        ensure_certificates(tmp_path / "file" / "tls", NOW)
    assert refused.value.hint
    ensure_certificates(tmp_path / "tls", NOW)
    (tmp_path / "tls" / "ca-key.pem").unlink()
    (tmp_path / "tls" / "ca-key.pem").mkdir()
    with pytest.raises(SetupError, match="cannot be stored"):
        ensure_certificates(tmp_path / "tls", NOW)


@pytest.mark.parametrize("names", [("bücher.example",), ("",)])
def test_an_impossible_name_is_refused_before_anything_is_written(folder: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(SetupError, match="no certificate can be made"):
        ensure_certificates(folder, NOW, names=names, addresses=() if names[0] else ("not an address",))
    assert not folder.exists()


def test_many_processes_at_once_agree(folder: Path) -> None:
    begin = f"""
import sys
from datetime import datetime
from pathlib import Path
from tracelake.lite.certificates import ensure_certificates
print("ready", flush=True)
sys.stdin.readline()
files = ensure_certificates(Path({str(folder)!r}), datetime.fromisoformat({NOW.isoformat()!r}))
print(files.ca.read_text(), files.cert.read_text(), files.notes)
"""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, "-c", begin], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = set()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=SECONDS)
        answers.add(output)
    assert len(answers) == 1
    assert answers.pop().endswith("()\n")
    assert works(ensure_certificates(folder, NOW))
