"""What only the signer of KMS has: keys that others disable, requests within its limits, and outages of AWS."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator

import pytest

from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.identity.signers import Signers, a_kms, kms_settings, kms_signers, new_kms_key
from tracelake.adapters.aws.service import AwsService
from tracelake.errors import SetupError, SigningUnavailable
from tracelake.ports import KeyPlan
from tracelake.settings import TokenSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[FaultyAws]:
    async with faulty_aws(moto) as faulty:
        yield faulty


@pytest.fixture
def settings(aws: FaultyAws) -> TokenSettings:
    return kms_settings(aws.url)


@pytest.fixture
async def kms(settings: TokenSettings) -> AsyncIterator[AwsService]:
    async with a_kms(settings) as opened:
        yield opened


@pytest.fixture
async def signers(settings: TokenSettings) -> AsyncIterator[Signers]:
    async with kms_signers(settings) as made:
        yield made


@pytest.mark.parametrize("code", ["DisabledException", "KMSInvalidStateException", "NotFoundException"])
async def test_a_key_that_was_disabled_or_deleted_is_a_retryable_error_that_names_it(
    aws: FaultyAws, signers: Signers, code: str
) -> None:
    signer = await signers.signing()
    (key,) = await signer.keys()
    aws.refuse("Sign", Refusal(code))
    with pytest.raises(SigningUnavailable, match=key.kid) as refused:
        await signer.sign(b"{}")
    assert refused.value.retryable
    assert "enable the key" in str(refused.value.hint)
    assert len(aws.requests("Sign")) == 1


async def test_a_disabled_key_is_not_held_until_it_is_enabled_again(signers: Signers, kms: AwsService) -> None:
    signer = await signers.signing()
    held = await signer.keys()
    (key_id,) = [key.id for key in signer._held.values()]  # type: ignore[attr-defined]
    await kms.call("disable_key", KeyId=key_id)
    assert len(await signer.keys()) == 0
    await kms.call("enable_key", KeyId=key_id)
    assert await signer.keys() == held


async def test_a_key_of_another_kind_under_our_prefix_is_named(
    signers: Signers, kms: AwsService, settings: TokenSettings
) -> None:
    alias = f"{settings.kms_alias_prefix}wrong"
    await new_kms_key(kms, alias, KeySpec="ECC_NIST_P384")
    with pytest.raises(SetupError, match="ECC_NIST_P384") as refused:
        await signers.open().keys()
    assert alias in refused.value.message


async def test_the_right_that_is_missing_is_named(aws: FaultyAws, signers: Signers) -> None:
    signer = await signers.signing()
    aws.refuse("Sign", Refusal("AccessDeniedException", 400, "User: x is not authorized to perform: kms:Sign on y"))
    with pytest.raises(SigningUnavailable) as refused:
        await signer.sign(b"{}")
    assert "allow the action kms:Sign on " in str(refused.value.hint)


async def test_a_throttled_request_is_repeated(aws: FaultyAws, signers: Signers) -> None:
    signer = await signers.signing()
    aws.refuse("Sign", Refusal("ThrottlingException"), times=2)
    assert await signer.sign(b"{}")
    assert len(aws.requests("Sign")) == 3


async def test_a_token_too_long_for_kms_to_hash_is_hashed_here(aws: FaultyAws, signers: Signers) -> None:
    signer = await signers.signing()
    short, long = await signer.sign(b"x" * 100), await signer.sign(b"x" * 10_000)
    raw, digest = aws.requests("Sign")
    assert (raw["MessageType"], digest["MessageType"]) == ("RAW", "DIGEST")
    assert base64.b64decode(raw["Message"]) == signed_part(short)
    assert base64.b64decode(digest["Message"]) == hashlib.sha256(signed_part(long)).digest()


async def test_public_keys_are_fetched_once(aws: FaultyAws, signers: Signers) -> None:
    signer = await signers.signing()
    for _ in range(3):
        await signer.keys()
    assert len(aws.requests("GetPublicKey")) == 1


async def test_a_retired_key_that_we_may_not_delete_is_out_of_use_all_the_same(
    aws: FaultyAws, signers: Signers
) -> None:
    signer = await signers.signing()
    (old,) = await signer.keys()
    new = await signer.rotate()
    await signer.keys()
    aws.refuse("ScheduleKeyDeletion", Refusal("AccessDeniedException", 400))
    await signer.follow(KeyPlan(new.kid, (old.kid,), rotation_due=False))
    assert await signer.sign(b"{}")


def signed_part(token: str) -> bytes:
    return token.rpartition(".")[0].encode()
