"""A folder of PEM files signs: what it reads, what it refuses, and what is left when a process is killed in it."""

from __future__ import annotations

import asyncio
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.identity.tokens import PEM, PKCS8, PLAIN, Key, pem, put
from tests.support.waiting import SECONDS
from tracelake.adapters.signer_pem import LOCK, PemSigner
from tracelake.errors import SetupError
from tracelake.ports import KeyPlan

pytestmark = pytest.mark.anyio


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def signing_with(folder: Path, kid: str) -> PemSigner:
    signer = PemSigner(folder)
    await signer.keys()
    await signer.follow(KeyPlan(kid, (), rotation_due=False))
    return signer


async def test_a_folder_that_is_not_there_is_made_for_this_user_only(tmp_path: Path) -> None:
    assert await PemSigner(tmp_path / "keys" / "task").keys() == ()
    assert modes(tmp_path / "keys") == {"task": 0o700}


async def test_a_rotation_makes_one_private_file_that_holds_the_key(tmp_path: Path) -> None:
    signer = PemSigner(tmp_path)
    made = await signer.rotate()
    assert await signer.keys() == (made,)
    assert modes(tmp_path) == {f"task-{made.kid}.pem": 0o600, LOCK: 0o600}


async def test_a_key_file_put_there_by_an_operator_is_found(tmp_path: Path) -> None:
    signer, provided = PemSigner(tmp_path), Key()
    await signer.keys()
    sec1 = provided.private.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN)
    put(tmp_path, "from-our-vault.pem", sec1, 0o640)
    assert [key.kid for key in await signer.keys()] == [provided.kid]


async def test_a_key_being_copied_in_under_a_dot_is_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path, ".incoming", b"half a k")
    assert await PemSigner(tmp_path).keys() == ()


async def test_a_key_in_two_files_is_one_key_and_goes_from_both(tmp_path: Path) -> None:
    key = Key()
    files = [put(tmp_path, name, pem(key)) for name in ("a.pem", "b.pem", "c")]
    signer = PemSigner(tmp_path)
    assert len(await signer.keys()) == 1
    await signer.follow(KeyPlan(None, (key.kid,), rotation_due=True))
    assert not any(path.exists() for path in files)


def encrypted() -> bytes:
    return Key().private.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"secret"))


GARBAGE = {
    "empty": (b"", "not a private key"),
    "half a key": (pem(Key())[:100], "not a private key"),
    "text": (b"remember to rotate\n", "not a private key"),
    "bytes": (bytes(range(256)), "not a private key"),
    "a public key": (Key().public_pem, "not a private key"),
    "an RSA key": (rsa.generate_private_key(65537, 2048).private_bytes(PEM, PKCS8, PLAIN), "not a P-256 key"),
    "a P-384 key": (ec.generate_private_key(ec.SECP384R1()).private_bytes(PEM, PKCS8, PLAIN), "not a P-256 key"),
    "a secp256k1 key": (ec.generate_private_key(ec.SECP256K1()).private_bytes(PEM, PKCS8, PLAIN), "not a P-256 key"),
    "an Ed25519 key": (ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, PLAIN), "not a P-256 key"),
    "an encrypted key": (encrypted(), "encrypted by a password"),
    "a large file": (pem(Key()) + b"\n" * 20_000, "too large"),
}


@pytest.mark.parametrize("case", GARBAGE)
async def test_garbage_is_named_and_the_signing_key_goes_on(case: str, tmp_path: Path) -> None:
    content, fault = GARBAGE[case]
    signer = PemSigner(tmp_path)
    kid = (await signer.rotate()).kid
    signer = await signing_with(tmp_path, kid)
    put(tmp_path, "garbage.pem", content)
    with pytest.raises(SetupError) as refused:
        await signer.keys()
    assert "garbage.pem" in refused.value.message
    assert fault in refused.value.message
    assert refused.value.where == str(tmp_path)
    assert await signer.sign(b"{}")


async def test_every_piece_of_garbage_is_named_at_once(tmp_path: Path) -> None:
    put(tmp_path, "README", b"hello")
    put(tmp_path, "old.pem", b"")
    (tmp_path / "folder.pem").mkdir()
    (tmp_path / "gone.pem").symlink_to(tmp_path)
    with pytest.raises(SetupError) as refused:
        await PemSigner(tmp_path).keys()
    for name in ("README", "old.pem", "folder.pem (not a file)", "gone.pem (not a file)"):
        assert name in refused.value.message


async def test_a_world_readable_key_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "open.pem", pem(Key()), 0o644)
    with pytest.raises(SetupError, match=r"open.pem \(open to every user"):
        await PemSigner(tmp_path).keys()


async def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    path = put(tmp_path, "file", b"")
    for verb in (PemSigner(path).keys, PemSigner(path).rotate):
        with pytest.raises(SetupError) as refused:
            await verb()
        assert refused.value.where == str(path)


async def test_rotations_at_once_that_know_the_same_keys_make_one_key(tmp_path: Path) -> None:
    signers = [PemSigner(tmp_path) for _ in range(8)]
    first = await asyncio.gather(*(signer.rotate(known=[]) for signer in signers))
    assert len({key.kid for key in first}) == 1
    second = await asyncio.gather(*(signer.rotate(known=[first[0].kid]) for signer in signers))
    assert len({key.kid for key in second}) == 1
    assert len(await signers[0].keys()) == 2


def test_a_rotation_killed_at_any_step_leaves_a_whole_key_or_none(tmp_path: Path) -> None:
    killed = subprocess.run(
        program("killed_key_changes", "rotate", str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert killed.returncode == 0, killed.stderr
    steps = [line.split() for line in killed.stdout.splitlines()]
    assert {"os.open", "fcntl.flock", "os.fdopen", "os.fsync", "os.replace", "os.close"} <= {step[0] for step in steps}
    assert {step[1] for step in steps} == {"none", "whole"}
