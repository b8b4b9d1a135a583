"""The setup of a deployment: a new Postgres, and secrets in moto's Secrets Manager. 15 s."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from cryptography import x509

from deploy.aws.network import SERVICES
from deploy.aws.services import DSNS, TOKEN, VARIABLES, service_list
from deploy.aws.setup import LISTENING, Server, Vault, at_rds, set_up
from tests.support.postgres import QUICK, RunningServer, running
from tracelake.adapters.aws.service import AwsService
from tracelake.domain.access.service_tokens import ANY_LISTENER, token_hashes
from tracelake.errors import SecretsUnavailable
from tracelake.lite.network_ports import free_port
from tracelake.lite.postgres import SUPERUSER, Cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Of its own: databases and roles have the names that they have in production."""
    folder = Path(tempfile.mkdtemp(prefix="trace-test-"))
    folder.chmod(0o711)
    try:
        with running(Cluster("aws", folder / "data", folder / "s", free_port(), settings=QUICK)) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def vault(moto: str) -> AsyncIterator[tuple[Vault, str]]:
    prefix = f"t{uuid4().hex[:8]}"
    aws = AwsService("secretsmanager", "us-east-1", moto, unavailable=SecretsUnavailable)
    for service in (*SERVICES, "setup"):  # as CloudFormation makes them: without a value
        await aws.call("create_secret", Name=f"{prefix}/{service}")
    yield Vault(aws, prefix), prefix
    await aws.close()


async def test_a_setup_gives_each_service_what_it_needs_and_a_second_one_changes_nothing(
    vault: tuple[Vault, str], server: RunningServer, tmp_path: Path
) -> None:
    secrets, prefix = vault
    owner = Server(server.cluster.dsn, SUPERUSER, server.password)
    await set_up(secrets, prefix, owner, owner)
    first = {service: await secrets.read(service) for service in SERVICES}
    for process in service_list():
        wanted = {*process.secrets, *DSNS.get(process.name, {}).values()}
        wanted |= set(TOKEN.values()) if process.name != "dispatcher" else {"state_dsn", "secret_keys"}
        assert wanted <= first[process.name].keys(), process.name
    assert set(VARIABLES) <= set().union(*first.values())

    with psycopg.connect(server.cluster.dsn("state", SUPERUSER, server.password)) as state:
        hashes = {row[0] for row in state.execute("SELECT token_hash FROM service_token_hashes")}
    tokens = {values["service_token"] for values in first.values() if "service_token" in values}
    assert len(tokens) == len(SERVICES) - 1
    assert {token_hashes(token)[ANY_LISTENER] for token in tokens} <= hashes
    for service, values in first.items():
        for name in ("state_dsn", "data_dsn"):
            if name in values:
                with psycopg.connect(values[name]) as connection:
                    role = connection.execute("SELECT current_user").fetchone()
                assert role == ({"sink": "worker"}.get(service, service),)
    for service in LISTENING:
        certificate = x509.load_pem_x509_certificate(first[service]["tls_cert"].encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [f"{service}.{prefix}.internal"]
        pair, authority = tmp_path / f"{service}.pem", tmp_path / "ca.pem"
        pair.write_text(first[service]["tls_cert"])
        authority.write_text(first["worker"]["tls_ca"])
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(pair)
        (issuer,) = x509.load_pem_x509_certificates(authority.read_bytes())
        certificate.verify_directly_issued_by(issuer)

    await set_up(secrets, prefix, owner, owner)
    again = {service: await secrets.read(service) for service in SERVICES}
    changing = {"tls_cert", "tls_key", "admin_token"}
    assert _without(again, changing) == _without(first, changing)

    await set_up(secrets, prefix, owner, owner, new_passwords=True)
    rotated = await secrets.read("worker")
    assert rotated["data_dsn"] != first["worker"]["data_dsn"]
    assert rotated["service_token"] == first["worker"]["service_token"]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(first["worker"]["data_dsn"])
    psycopg.connect(rotated["data_dsn"]).close()


def _without(secrets: dict[str, dict[str, str]], names: set[str]) -> dict[str, dict[str, str]]:
    return {
        service: {name: value for name, value in values.items() if name not in names}
        for service, values in secrets.items()
    }


def test_a_password_with_any_characters_makes_an_address() -> None:
    dsn = at_rds("db.example")("state", "trace_owner", "a/b@c:d?e#f")
    found = psycopg.conninfo.conninfo_to_dict(dsn)
    assert (found["password"], found["host"], found["sslmode"]) == ("a/b@c:d?e#f", "db.example", "require")
