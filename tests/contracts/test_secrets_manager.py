"""Settings by reference to Secrets Manager: values, what is missing, and what AWS refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.aws.secrets_manager import create_secret, delete_secret
from tracelake.adapters.secrets_manager import SecretsManager
from tracelake.errors import SecretsUnavailable, SettingsError
from tracelake.settings import SecretReference, SecretsManagerSettings

pytestmark = pytest.mark.anyio

PATH = "state.dsn"
TEXT = "postgresql://u:hidden-password@h/d"


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[FaultyAws]:
    async with faulty_aws(moto) as faulty:
        yield faulty


@pytest.fixture
async def manager(aws: FaultyAws) -> AsyncIterator[SecretsManager]:
    opened = SecretsManager(SecretsManagerSettings(endpoint=aws.url))
    yield opened
    await opened.close()


async def test_a_value_is_the_whole_text_or_a_text_in_its_json_object(moto: str, manager: SecretsManager) -> None:
    plain = await create_secret(moto, SecretString=TEXT)
    several = await create_secret(moto, SecretString=json.dumps({"dsn": TEXT, "port": 5432}))
    assert await manager.value_of(PATH, SecretReference(plain)) == TEXT
    assert await manager.value_of(PATH, SecretReference(several, "dsn")) == TEXT


async def test_a_secret_of_several_settings_is_fetched_once(moto: str, aws: FaultyAws, manager: SecretsManager) -> None:
    name = await create_secret(moto, SecretString=json.dumps({"a": "first", "b": "second"}))
    assert [await manager.value_of(PATH, SecretReference(name, key)) for key in "ab"] == ["first", "second"]
    assert len(aws.requests("GetSecretValue")) == 1


async def test_a_secret_that_is_missing_or_deleted_names_the_setting(moto: str, manager: SecretsManager) -> None:
    with pytest.raises(SettingsError, match="there is no secret trace/none ") as missing:
        await manager.value_of(PATH, SecretReference("trace/none"))
    assert (missing.value.where, missing.value.retryable) == (PATH, False)
    name = await create_secret(moto, SecretString=TEXT)
    await delete_secret(moto, name)
    with pytest.raises(SettingsError, match="to be deleted") as deleted:
        await manager.value_of(PATH, SecretReference(name))
    assert f"restore-secret --secret-id {name}" in str(deleted.value.hint)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"SecretString": json.dumps({"other": TEXT})}, "has no text named 'dsn'"),
        ({"SecretString": json.dumps({"dsn": 5432})}, "has no text named 'dsn'"),
        ({"SecretString": json.dumps([TEXT])}, "is no JSON object"),
        ({"SecretString": TEXT}, "is no JSON object"),
        ({"SecretBinary": TEXT.encode()}, "holds bytes"),
    ],
)
async def test_a_secret_of_another_form_is_refused_and_not_repeated(
    moto: str, manager: SecretsManager, content: dict[str, str], says: str
) -> None:
    name = await create_secret(moto, **content)
    with pytest.raises(SettingsError, match=says) as refused:
        await manager.value_of(PATH, SecretReference(name, "dsn"))
    assert refused.value.where == PATH
    assert "hidden-password" not in str(refused.value.as_dict())
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("message", "action"),
    [
        (
            "User: x is not authorized to perform: secretsmanager:GetSecretValue on y",
            "secretsmanager:GetSecretValue on",
        ),
        ("", "secretsmanager:GetSecretValue on"),
        ("Access to KMS is not allowed", "kms:Decrypt on the key"),
    ],
)
async def test_the_right_that_is_missing_is_named(
    aws: FaultyAws, manager: SecretsManager, message: str, action: str
) -> None:
    aws.refuse("GetSecretValue", Refusal("AccessDeniedException", 400, message))
    with pytest.raises(SecretsUnavailable) as refused:
        await manager.value_of(PATH, SecretReference("trace/denied"))
    assert f"allow the action {action}" in str(refused.value.hint)
    assert len(aws.requests("GetSecretValue")) == 1


async def test_a_throttled_request_is_repeated(moto: str, aws: FaultyAws, manager: SecretsManager) -> None:
    name = await create_secret(moto, SecretString=TEXT)
    aws.refuse("GetSecretValue", Refusal("ThrottlingException"), times=2)
    assert await manager.value_of(PATH, SecretReference(name)) == TEXT
    assert len(aws.requests("GetSecretValue")) == 3
