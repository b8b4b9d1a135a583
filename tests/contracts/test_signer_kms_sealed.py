"""What only the signer of data keys has: KMS is asked once for each key, and what lies in the store opens nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.identity.signers import Signers, sealed_settings, sealed_signers
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.adapters.signer_kms_sealed import FOLDER, KmsSealedSigner
from tracelake.domain.access.object_names import Folder
from tracelake.errors import SettingsError, SetupError, SigningUnavailable
from tracelake.settings import TokenSettings, load_settings

pytestmark = pytest.mark.anyio
KEYS = Folder("trace", FOLDER)


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[FaultyAws]:
    async with faulty_aws(moto) as faulty:
        yield faulty


@pytest.fixture
async def signers(aws: FaultyAws, tmp_path: Path) -> AsyncIterator[Signers]:
    async with sealed_signers(aws.url, tmp_path) as made:
        yield made


async def test_tokens_need_no_request_to_kms_and_a_key_one_for_each_process(aws: FaultyAws, signers: Signers) -> None:
    signer = await signers.signing()
    before = len(aws.asked)
    for number in range(50):
        await signer.sign(json.dumps({"n": number}).encode())
    assert len(aws.asked) == before
    for _ in range(3):
        await signer.keys()
    assert len(aws.asked) == before
    await signers.open().keys()
    assert [operation for operation, _ in aws.asked[before:]] == ["Decrypt"]


async def test_what_lies_in_the_store_is_encrypted_and_bound_to_its_key_id(
    aws: FaultyAws, signers: Signers, tmp_path: Path
) -> None:
    await signers.signing()
    ((_, asked),) = [item for item in aws.asked if item[0] == "Encrypt"]
    store = DiskObjects(tmp_path)
    (found,) = store.objects(KEYS)
    body = store.get(found.name)
    private = base64.b64decode(asked["Plaintext"])
    sealed = base64.b64decode(json.loads(body)["sealed"])
    assert private not in sealed
    assert base64.b64encode(private) not in body
    store.put(KEYS.object("another.json"), body)
    with pytest.raises(SigningUnavailable, match="InvalidCiphertext"):
        await signers.open().keys()


@pytest.mark.parametrize("code", ["DisabledException", "KMSInvalidStateException", "AccessDeniedException"])
async def test_without_the_key_that_encrypts_those_go_on_that_have_begun_and_others_say_why_not(
    aws: FaultyAws, signers: Signers, code: str
) -> None:
    signer = await signers.signing()
    aws.refuse("Decrypt", Refusal(code))
    await signer.keys()
    assert await signer.sign(b"{}")
    with pytest.raises(SigningUnavailable) as refused:
        await signers.open().keys()
    assert refused.value.retryable
    wanted = "kms:Decrypt" if code == "AccessDeniedException" else code
    assert wanted in f"{refused.value.message} {refused.value.hint}"


async def test_what_is_no_key_is_named(signers: Signers, tmp_path: Path) -> None:
    await signers.signing()
    DiskObjects(tmp_path).put(KEYS.object("x.json"), b"hello")
    with pytest.raises(SetupError) as refused:
        await signers.open().keys()
    assert "x.json" in str(refused.value.where)


@pytest.mark.parametrize(
    "given",
    [
        {"TRACE_TOKENS__SIGNER": "kms_sealed"},
        {"TRACE_TOKENS__KMS_SEALING_KEY": "alias/x"},
        {"TRACE_TOKENS__SIGNER": "kms", "TRACE_TOKENS__KMS_SEALING_KEY": "alias/x"},
    ],
)
def test_the_key_that_encrypts_belongs_to_this_signer_alone(given: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="kms_sealing_key"):
        load_settings(given, home=tmp_path)


def test_the_signer_needs_the_key_that_encrypts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="kms_sealing_key"):
        KmsSealedSigner(TokenSettings(), DiskObjects(tmp_path), "trace")
    assert sealed_settings("http://x", "alias/x").kms_sealing_key == "alias/x"
