"""Settings are read once, from three places, and refuse what cannot be meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from tracelake.errors import SettingsError
from tracelake.settings import (
    RUNTIMES,
    Group,
    SecretReference,
    Settings,
    leaves,
    leaves_of,
    load,
    load_settings,
    origin,
    references_in,
    root,
    settings_from_document,
    shown,
    stray_variables,
    to_document,
)
from tracelake.settings.base import setting
from tracelake.settings.root import SettingName


def write(home: Path, text: str) -> Path:
    (home / "trace.toml").write_text(text)
    return home


def test_environment_wins_over_file_and_file_over_default(tmp_path: Path) -> None:
    home = write(tmp_path, '[spark]\nmaster = "local[2]"\nshuffle_partitions = 16\n')
    settings = load_settings({"TRACE_SPARK__MASTER": "local[3]"}, home=home)
    assert settings.spark.master == "local[3]"
    assert settings.spark.shuffle_partitions == 16
    assert settings.spark.driver_memory == "1g"


def test_the_home_option_wins_over_the_home_variable(tmp_path: Path) -> None:
    assert load_settings({"TRACE_HOME": "/elsewhere"}, home=tmp_path).home == tmp_path
    assert load_settings({"TRACE_HOME": str(tmp_path)}).home == tmp_path


ON_CLUSTER = {"TRACE_SPARK__MASTER": "spark://host:7077"}
REFUSED = [
    ({"TRACE_SPRAK__MASTER": "x"}, "TRACE_SPRAK__MASTER", "TRACE_SPARK__MASTER"),
    ({"TRACE_SPARK__MASTR": "x"}, "TRACE_SPARK__MASTR", "TRACE_SPARK__MASTER"),
    ({"TRACE_STATE": "{}"}, "TRACE_STATE", "TRACE_STATE__DSN"),
    ({"TRACE_UP__PORT_BASE": "many"}, "up.port_base", "config show"),
    ({"TRACE_UP__PORT_BASE": "70000"}, "up.port_base", "config show"),
    ({"TRACE_UP__BACKOFF_SECONDS": "90"}, "up", "config show"),
    ({"TRACE_SPARK__DRIVER_MEMORY": "lots"}, "spark.driver_memory", "config show"),
    ({"TRACE_LOG__LEVEL": "loud"}, "log.level", "config show"),
    ({"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__DSN": "postgresql://h/q"}, "queue", "config show"),
    ({"TRACE_QUEUE__ENDPOINT": "http://127.0.0.1:4566"}, "queue", "config show"),
    ({"TRACE_QUEUE__CREATE": "1"}, "queue", "config show"),
    ({"TRACE_TOKENS__SIGNER": "kms", "TRACE_TOKENS__KEY_FOLDER": "/keys"}, "tokens", "config show"),
    ({"TRACE_TOKENS__KMS_REGION": "eu-central-1"}, "tokens", "config show"),
    ({"TRACE_TOKENS__SIGNER": "kms", "TRACE_TOKENS__KMS_ALIAS_PREFIX": "x"}, "tokens.kms_alias_prefix", "config show"),
    ({"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__PREFIX": "a prefix"}, "queue.prefix", "config show"),
    ({"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__PREFIX": "x" * 12}, "queue.prefix", "config show"),
    ({"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__POLL_SECONDS": "21"}, "queue.poll_seconds", "config show"),
    ({"TRACE_CLIENT__TOKEN": "aws-secret:name"}, "client.token", "config show"),
    ({"TRACE_SPARK__EXECUTOR_MEMORY": "1g"}, "spark", "config show"),
    ({**ON_CLUSTER, "TRACE_SPARK__EXECUTOR_MEMORY": "much"}, "spark.executor_memory", "config show"),
    ({**ON_CLUSTER, "TRACE_SPARK__MIN_EXECUTORS": "1"}, "spark", "config show"),
    ({**ON_CLUSTER, "TRACE_SPARK__MIN_EXECUTORS": "3", "TRACE_SPARK__MAX_EXECUTORS": "2"}, "spark", "config show"),
    ({**ON_CLUSTER, "TRACE_SPARK__KUBERNETES_IMAGE": "registry.example/x"}, "spark", "config show"),
    ({**ON_CLUSTER, "TRACE_SPARK__KUBERNETES_NAMESPACE": "A_B"}, "spark.kubernetes_namespace", "config show"),
]


@pytest.mark.parametrize(("env", "where", "hint"), REFUSED)
def test_an_unknown_or_impossible_value_is_refused_by_name(
    env: dict[str, str], where: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(env, home=tmp_path)
    assert refused.value.where == where
    assert hint in (refused.value.hint or "")


STRAY = {
    "TRACE_GATEWAY_PORT": "tcp://10.0.0.1:443",
    "TRACE_GATEWAY_SERVICE_HOST": "10.0.0.1",
    "TRACE_GATEWAY_PORT_443_TCP_ADDR": "10.0.0.1",
    "TRACE_ID": "00-4bf9",
}
"""What others set: Kubernetes for a service named trace-gateway, a tracing library."""


def test_variables_of_others_that_are_like_none_of_ours_are_ignored_and_named(tmp_path: Path) -> None:
    env = {**STRAY, "TRACE_LOG__LEVEL": "debug"}
    assert load_settings(env, home=tmp_path).log.level == "debug"
    assert stray_variables(env) == sorted(STRAY)


@pytest.mark.parametrize("misspelt", ["TRACE_HOEM", "TRACE_STATE_DSN__X", "TRACE_SPARK", "TRACE_SPAKR"])
def test_a_variable_that_is_like_one_of_ours_is_refused(misspelt: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=misspelt):
        load_settings({misspelt: "x"}, home=tmp_path)


@pytest.mark.parametrize("nonsense", ["", "?", "-1", "1e99", "nan", "[]", "{}", "null"])
def test_invalid_values_are_refused_with_our_own_message(nonsense: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({leaf.of("x").variable: nonsense for leaf in leaves()}, home=tmp_path)
    assert refused.value.message.count("is wanted") > 50
    theirs = ("should", "a valid", "Value error", "Field required", "Extra inputs", "Unable to", "does not fit here")
    assert not [words for words in theirs if words in refused.value.message]


def test_every_wrong_setting_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"TRACE_LOG__LEVEL": "loud", "TRACE_SPARK__SHUFFLE_PARTITIONS": "0"}, home=tmp_path)
    assert "log.level" in refused.value.message
    assert "spark.shuffle_partitions" in refused.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[spark]\nmastr = "x"\n', "there is no setting spark.mastr"),
        ("[nowhere]\n", "there is no setting nowhere"),
        ("not toml", "cannot be read"),
        ("\x00", "cannot be read"),
        ('home = "/x"\n', "`home` cannot be set"),
        ('[state]\ndsn = "postgresql://u:hush@h/d"\n', "state.dsn is a secret"),
        ('[identity]\nservice_token = "hush"\n', "identity.service_token is a secret"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said.replace("`", ".")) as refused:
        load_settings({}, home=write(tmp_path, text))
    assert "hush" not in json.dumps(refused.value.as_dict())


def test_a_secret_is_never_shown_nor_repeated_in_a_refusal(tmp_path: Path) -> None:
    env = {"TRACE_STATE__DSN": "postgresql://u:hush@h/d", "TRACE_IDENTITY__SERVICE_TOKEN": "hush"}
    settings = load_settings(env, home=tmp_path)
    assert "hush" not in repr(settings)
    assert "hush" not in "".join(shown(settings, leaf) for leaf in leaves_of(settings))
    assert shown(settings, next(leaf for leaf in leaves() if leaf.path == "state.dsn")) == "********"


def test_a_document_carries_everything_to_a_child_and_nothing_leaks_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"TRACE_STATE__DSN": "postgresql://u:hush@h/d", "TRACE_UP__PORT_BASE": "0"}
    settings = load_settings(env, home=write(tmp_path, '[log]\nlevel = "debug"\n'))
    monkeypatch.setenv("TRACE_LOG__LEVEL", "error")
    again = settings_from_document(to_document(settings))
    assert again.model_dump() == settings.model_dump()
    assert again.state.dsn is not None
    assert again.state.dsn.get_secret_value() == "postgresql://u:hush@h/d"


@pytest.mark.parametrize("document", ["", "nonsense", '{"nowhere": 1}', '{"log": {"level": "loud"}}'])
def test_a_document_that_cannot_be_meant_is_refused(document: str) -> None:
    with pytest.raises(SettingsError):
        settings_from_document(document)


def test_a_setting_says_where_its_value_came_from(tmp_path: Path) -> None:
    home = write(tmp_path, '[spark]\nmaster = "local[2]"\n')
    by_path = {leaf.path: leaf for leaf in leaves()}
    env = {"TRACE_LOG__LEVEL": "debug"}
    settings = load_settings(env, home=home)
    assert origin(by_path["spark.master"], env, settings) == "trace.toml"
    assert origin(by_path["log.level"], env, settings) == "TRACE_LOG__LEVEL"
    assert origin(by_path["spark.remote"], env, settings) == "default"


def test_a_group_by_name_is_changed_and_added_from_both_places(tmp_path: Path) -> None:
    home = write(tmp_path, '[runtimes.ecs_platform]\nmax_attempts = 7\n[runtimes.big]\nqueue = "big"\n')
    env = {"TRACE_RUNTIMES__ECS_PLATFORM__QUEUE": "mine", "TRACE_RUNTIMES__BIG_ONES__QUEUE": "huge"}
    runtimes = load_settings(env, home=home).runtimes
    assert set(runtimes) == {*RUNTIMES, "big", "big_ones"}
    assert (runtimes["ecs_platform"].queue, runtimes["ecs_platform"].max_attempts) == ("mine", 7)
    assert (runtimes["big"].queue, runtimes["big_ones"].queue) == ("big", "huge")
    assert runtimes["lambda"] == RUNTIMES["lambda"]
    again = settings_from_document(to_document(load_settings(env, home=home)))
    assert again.runtimes == runtimes


@pytest.mark.parametrize(
    ("env", "where", "hint"),
    [
        ({"TRACE_RUNTIMES__BIG__QEUE": "x"}, "TRACE_RUNTIMES__BIG__QEUE", "TRACE_RUNTIMES__BIG__QUEUE"),
        ({"TRACE_RUNTIME__BIG__QUEUE": "x"}, "TRACE_RUNTIME__BIG__QUEUE", "TRACE_RUNTIMES__BIG__QUEUE"),
        ({"TRACE_RUNTIMES": "{}"}, "TRACE_RUNTIMES", "TRACE_"),
        ({"TRACE_RUNTIMES__9__QUEUE": "x"}, "runtimes", "rename"),
        ({"TRACE_RUNTIMES__BIG__INVOKER": "queue"}, "runtimes.big", "config show"),
        ({"TRACE_RUNTIMES__DISPATCHER__QUEUE": "x"}, "runtimes.dispatcher", "config show"),
        ({"TRACE_RUNTIMES__LAMBDA__MAX_ATTEMPTS": "0"}, "runtimes.lambda.max_attempts", "config show"),
    ],
)
def test_a_group_by_name_is_refused_as_any_other(env: dict[str, str], where: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(env, home=tmp_path)
    assert refused.value.where == where
    assert hint in (refused.value.hint or "")


def test_a_group_by_name_says_where_each_of_its_values_came_from(tmp_path: Path) -> None:
    home = write(tmp_path, '[runtimes.big]\nqueue = "big"\n')
    env = {"TRACE_RUNTIMES__BIG__MAX_ATTEMPTS": "5"}
    settings = load_settings(env, home=home)
    found = {leaf.path: (shown(settings, leaf), origin(leaf, env, settings)) for leaf in leaves_of(settings)}
    assert found["runtimes.big.queue"] == ("big", "trace.toml")
    assert found["runtimes.big.max_attempts"] == ("5", "TRACE_RUNTIMES__BIG__MAX_ATTEMPTS")
    assert found["runtimes.ecs_udf.queue"] == ("tasks-ecs_udf", "default")


class Pool(Group):
    """A group by name with secrets in a list: what the next one may look like."""

    urls: list[SecretStr] = setting([], "Where it is.")
    weight: int = setting(1, "How much of it.", unit="count")


class WithPools(Settings):
    pools: Mapping[SettingName, Pool] = {}


def test_secrets_of_a_group_by_name_are_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "Settings", WithPools)
    monkeypatch.setattr(load, "Settings", WithPools)
    env = {"TRACE_POOLS__MAIN__URLS": '["https://hush@a", "https://hush@b"]', "TRACE_POOLS__MAIN__WEIGHT": "2"}
    settings = load_settings(env, home=tmp_path)
    assert isinstance(settings, WithPools)
    assert [url.get_secret_value() for url in settings.pools["main"].urls] == ["https://hush@a", "https://hush@b"]
    assert "hush" not in repr(settings)
    assert {leaf.path: shown(settings, leaf) for leaf in leaves_of(settings)}["pools.main.urls"] == "********"
    again = settings_from_document(to_document(settings))
    assert again.model_dump() == settings.model_dump()
    in_file = '[pools.main]\nurls = ["hush"]\n', 'pools = "hush"\n', '[pools]\nmain = "hush"\n'
    wrong = [({"TRACE_POOLS__MAIN__URLS": value}, "") for value in ("hush", '["a", {"hush": 1}]')]
    for given, text in [*wrong, *(({}, text) for text in in_file)]:
        with pytest.raises(SettingsError) as refused:
            load_settings(given, home=write(tmp_path, text))
        assert "hush" not in json.dumps(refused.value.as_dict()), text or given


def test_only_a_document_on_standard_input_arms_a_process_to_fail(tmp_path: Path) -> None:
    armed = settings_from_document('{"faults": {"point": "trigger.after_commit"}}')
    assert armed.faults.point == "trigger.after_commit"
    with pytest.raises(SettingsError, match="only by the test"):
        load_settings({"TRACE_FAULTS__POINT": "trigger.after_commit"}, home=tmp_path)
    with pytest.raises(SettingsError, match="only by the test"):
        load_settings({}, home=write(tmp_path, '[faults]\npoint = "trigger.after_commit"\n'))
    with pytest.raises(SettingsError, match=r"did you mean trigger\.after_commit"):
        settings_from_document('{"faults": {"point": "trigger.after_comit"}}')


def test_a_reference_to_a_secret_may_be_in_the_file_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "trace.toml").write_text(
        '[state]\ndsn = "aws-secret:prod/state#dsn"\n[secrets]\nkey = "aws-secret:key"\n'
    )
    settings = load_settings({}, home=tmp_path)
    assert references_in(settings) == {
        "state.dsn": SecretReference("prod/state", "dsn"),
        "secrets.key": SecretReference("key"),
    }
    said = {leaf.path: shown(settings, leaf) for leaf in leaves_of(settings) if leaf.secret}
    assert (said["state.dsn"], said["secrets.key"]) == ("aws-secret:prod/state#dsn", "aws-secret:key")


def test_a_secret_beside_a_reference_in_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.toml").write_text('[secrets]\nkey = "aws-secret:key"\nother = "the value"\n')
    with pytest.raises(SettingsError, match="is a secret") as refused:
        load_settings({}, home=tmp_path)
    assert "the value" not in str(refused.value.as_dict())


@pytest.mark.parametrize("reference", ["aws-secret:", "aws-secret:a b", "aws-secret:a#", "aws-secret:a#b#c"])
def test_a_reference_that_is_not_well_formed_is_refused_by_name(reference: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        references_in(load_settings({"TRACE_STATE__DSN": reference}, home=tmp_path))
    assert refused.value.where == "state.dsn"
