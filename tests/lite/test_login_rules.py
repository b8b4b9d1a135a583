"""Rules of the first login as settings: what is refused, who gets them, and what the doctor finds."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from tracelake.errors import SettingsError
from tracelake.lite.doctor.login import examine_login_rules
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import LoginRule, Settings, StateSettings, load_settings, settings_from_document

RULE = {
    "TRACE_IDENTITY__USER_ISSUER": "https://login",
    "TRACE_LOGIN_RULES__STAFF__ISSUER": "https://login",
    "TRACE_LOGIN_RULES__STAFF__VALUE": "staff",
    "TRACE_LOGIN_RULES__STAFF__ORG": "acme",
    "TRACE_LOGIN_RULES__STAFF__ORG_ROLES": '["finance"]',
}
FILES = TlsFiles(Path("ca"), Path("cert"), Path("key"))


def settings_with(home: Path, **changes: str) -> Settings:
    named = {f"TRACE_LOGIN_RULES__STAFF__{name.upper()}": value for name, value in changes.items()}
    return load_settings(RULE | named, home=home)


def test_a_rule_is_read_from_environment_and_file(tmp_path: Path) -> None:
    expected = LoginRule(issuer="https://login", claim="groups", value="staff", org="acme", org_roles=["finance"])
    assert settings_with(tmp_path).login_rules == {"staff": expected}
    text = """
        [identity]
        user_issuer = "https://login"
        [login_rules.staff]
        issuer = "https://login"
        value = "staff"
        org = "acme"
        org_roles = ["finance"]
    """
    (tmp_path / "trace.toml").write_text(text)
    assert load_settings({}, home=tmp_path).login_rules == {"staff": expected}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (
            "issuer",
            "https://evil",
            "the issuer of staff is 'https://evil', and identity.user_issuer is 'https://login'",
        ),
        ("issuer", "", "the issuer of staff is ''"),
        ("value", "", "login_rules.staff.value"),
        ("claim", "", "login_rules.staff.claim"),
        ("value", "v" * 257, "login_rules.staff.value"),
        ("org", "Acme Inc", "login_rules.staff.org"),
        ("role", "owner", "login_rules.staff.role"),
        ("org_roles", "finance", "login_rules.staff.org_roles"),
        ("org_roles", '["Finance!"]', "login_rules.staff.org_roles"),
        ("org_roles", "[7]", "login_rules.staff.org_roles"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(tmp_path: Path, field: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings_with(tmp_path, **{field: value})
    assert says in refused.value.message


def test_a_rule_without_issuer_or_value_is_refused(tmp_path: Path) -> None:
    for missing in ("ISSUER", "VALUE"):
        given = {name: value for name, value in RULE.items() if name != f"TRACE_LOGIN_RULES__STAFF__{missing}"}
        with pytest.raises(SettingsError):
            load_settings(given, home=tmp_path)


def test_only_gateway_and_dispatcher_get_the_rules(tmp_path: Path) -> None:
    settings, names = settings_with(tmp_path), list(PROCESSES)
    made = children(
        names,
        settings,
        ports=Ports(*range(7400, 7400 + len(Ports.__dataclass_fields__))),
        tls=FILES,
        dsns=Dsns(*(["postgres://x"] * len(Dsns.__dataclass_fields__))),
        token_file=lambda name: tmp_path / name,
        issuer="PEM",
    )
    given = {child.name: settings_from_document((child.launch().stdin or b"").decode()).login_rules for child in made}
    assert {name for name, rules in given.items() if rules} == {"dispatcher", "gateway"}
    assert given["gateway"] == given["dispatcher"] == settings.login_rules


def test_the_doctor_names_the_rule_and_what_does_not_exist(state_db: str, tmp_path: Path) -> None:
    state = StateSettings(dsn=SecretStr(state_db))
    settings = settings_with(tmp_path).model_copy(update={"state": state})
    with psycopg.connect(state_db, autocommit=True) as database:
        (found,) = examine_login_rules(settings)
        assert (found.ok, found.found) == (False, "login_rules.staff: there is no organisation 'acme'")
        database.execute("INSERT INTO orgs (name, slug) VALUES ('acme', 'acme')")
        (found,) = examine_login_rules(settings)
        assert (found.ok, found.found) == (False, "login_rules.staff: the organisation 'acme' has no role 'finance'")
        database.execute("INSERT INTO org_roles (org_id, slug, name) SELECT id, 'finance', 'Finance' FROM orgs")
        assert [finding.ok for finding in examine_login_rules(settings)] == [True]


def test_the_doctor_says_who_checks_where_it_has_no_database(tmp_path: Path) -> None:
    (found,) = examine_login_rules(settings_with(tmp_path))
    assert found.ok
    assert "Dispatcher" in found.found
    assert examine_login_rules(load_settings({}, home=tmp_path)) == []
    away = StateSettings(dsn=SecretStr("postgresql://x@127.0.0.1:1/x"))
    (found,) = examine_login_rules(settings_with(tmp_path).model_copy(update={"state": away}))
    assert found.ok is None
