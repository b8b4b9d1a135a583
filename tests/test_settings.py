"""Settings are read once, from three places, and refuse what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_platform.errors import SettingsError
from trace_platform.settings import leaves, load_settings, origin, settings_from_document, shown, to_document


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


REFUSED = [
    ({"TRACE_SPRAK__MASTER": "x"}, "TRACE_SPRAK__MASTER", "TRACE_SPARK__MASTER"),
    ({"TRACE_SPARK__MASTR": "x"}, "TRACE_SPARK__MASTR", "TRACE_SPARK__MASTER"),
    ({"TRACE_STATE": "{}"}, "TRACE_STATE", "TRACE_STATE__DSN"),
    ({"TRACE_UP__PORT_BASE": "many"}, "up.port_base", "config show"),
    ({"TRACE_UP__PORT_BASE": "70000"}, "up.port_base", "config show"),
    ({"TRACE_UP__BACKOFF_SECONDS": "90"}, "up", "config show"),
    ({"TRACE_SPARK__DRIVER_MEMORY": "lots"}, "spark.driver_memory", "config show"),
    ({"TRACE_LOG__LEVEL": "loud"}, "log.level", "config show"),
]


@pytest.mark.parametrize(("env", "where", "hint"), REFUSED)
def test_an_unknown_or_impossible_value_is_refused_by_name(
    env: dict[str, str], where: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(env, home=tmp_path)
    assert refused.value.where == where
    assert hint in (refused.value.hint or "")


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
        ('[identity]\nworker_token = "hush"\n', "identity.worker_token is a secret"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said.replace("`", ".")) as refused:
        load_settings({}, home=write(tmp_path, text))
    assert "hush" not in json.dumps(refused.value.as_dict())


def test_a_secret_is_never_shown_nor_repeated_in_a_refusal(tmp_path: Path) -> None:
    env = {"TRACE_STATE__DSN": "postgresql://u:hush@h/d", "TRACE_IDENTITY__WORKER_TOKEN": "hush"}
    settings = load_settings(env, home=tmp_path)
    assert "hush" not in repr(settings)
    assert "hush" not in "".join(shown(settings, leaf) for leaf in leaves())
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
    assert origin(by_path["spark.master"], env, home) == "trace.toml"
    assert origin(by_path["log.level"], env, home) == "TRACE_LOG__LEVEL"
    assert origin(by_path["spark.remote"], env, home) == "default"
