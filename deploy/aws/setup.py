"""`python -m deploy.aws.setup`: databases, roles, tokens and certificates of a deployment on AWS.

Runs in the network of the deployment, before the first start and before each new version. All of it can be repeated:
what is there stays, but for certificates that end soon. Passwords, tokens and keys are made here, and leave this
process only as the secrets of the services that have them; none of them is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deploy.aws.network import SERVICES
from tracelake.adapters.aws.service import AwsRefusal, AwsService
from tracelake.domain.access.service_tokens import new_service_token
from tracelake.errors import SecretsUnavailable, TraceError
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.home import Home, ensure_issuer_key, ensure_secret_key, public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.settings import IdentitySettings, WorkerSettings
from tracelake.store.first_start import FIRST_ADMIN, LocalToken, ensure_first_rows
from tracelake.store.migrate import migrate
from tracelake.store.roles import ROLES, Instance, ensure_databases, ensure_roles

Address = Callable[[str, str, str], str]
"""The DSN of a database, a user and a password on one server."""
Values = dict[str, str]

LISTENING: Final = ("dispatcher", "query", "delivery", "gateway")
ADMIN_SECONDS: Final = 24 * 3600
ROLE_OF: Final = {"worker": "worker", "sink": "worker", "query": "query", "delivery": "delivery"}
"""Each process with a DSN, by its role in the data database."""
KEPT: Final = ("keys/issuer.pem", "keys/secrets.key", "tls/ca.pem", "tls/ca-key.pem")
"""Files that every setup finds as the first one made them."""
NO_VALUE: Final = "ResourceNotFoundException"


@dataclass(frozen=True)
class Server:
    address: Address
    user: str
    password: str

    def owner(self, database: str = "postgres") -> str:
        return self.address(database, self.user, self.password)


class Vault:
    """The secrets of a deployment, each a JSON object."""

    def __init__(self, aws: AwsService, prefix: str) -> None:
        self._aws, self._prefix = aws, prefix

    async def read(self, service: str) -> Values:
        return await self.value(f"{self._prefix}/{service}")

    async def value(self, name: str) -> Values:
        """Empty for a secret that CloudFormation has made, and that has no value yet."""
        try:
            answer = await self._aws.call("get_secret_value", handled=frozenset({NO_VALUE}), SecretId=name)
        except AwsRefusal:
            return {}
        found: Values = json.loads(answer["SecretString"])
        return found

    async def write(self, service: str, values: Mapping[str, str]) -> None:
        name, text = f"{self._prefix}/{service}", json.dumps(values)
        await self._aws.call("put_secret_value", SecretId=name, SecretString=text)


async def set_up(vault: Vault, prefix: str, state: Server, data: Server, *, new_passwords: bool = False) -> None:
    """Its own values are stored before anything uses them, so that a setup that was cut off can be repeated."""
    found = await vault.read("setup")
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        _restore(home, found)
        own = {**found, **_made(home, found, new_passwords=new_passwords), **_files(home, prefix)}
        await vault.write("setup", own)
        await asyncio.to_thread(_databases, state, data, own)
        await vault.write("setup", own)  # a token that was revoked has been replaced
        for service in SERVICES:
            await vault.write(service, _values(service, own, home, state, data))


def _restore(home: Home, found: Values) -> None:
    for name in KEPT:
        path = home.root / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if name in found:
            path.write_text(found[name], encoding="utf-8")
            path.chmod(0o600)


def _made(home: Home, found: Values, *, new_passwords: bool) -> Values:
    passwords = {f"password/{role}": secrets.token_urlsafe(32) for roles in ROLES.values() for role in roles}
    tokens = {f"token/{service}": new_service_token() for service in SERVICES if service != "dispatcher"}
    ensure_issuer_key(home)
    ensure_secret_key(home)
    wanted = {**passwords, **tokens}
    return {name: value for name, value in wanted.items() if name not in found or (new_passwords and name in passwords)}


def _files(home: Home, prefix: str) -> Values:
    """Each listener has a certificate for its own name alone, of one authority."""
    for service in LISTENING:
        _certificate(home, service, prefix)
    return {name: (home.root / name).read_text(encoding="utf-8") for name in KEPT}


def _certificate(home: Home, service: str, prefix: str) -> Path:
    made = ensure_certificates(home.tls, datetime.now(UTC), names=(f"{service}.{prefix}.internal",), addresses=())
    place = home.tls / f"{service}.pem"
    made.cert.rename(place)
    return place


def _databases(state: Server, data: Server, own: Values) -> None:
    instances: Mapping[Instance, Server] = {"state": state, "data": data}
    for instance, server in instances.items():
        ensure_databases(server.owner(), instance)
    migrate(state.owner("state"), "state")
    migrate(data.owner("data"), "data")
    migrate(data.owner("queue"), "queue")
    for instance, server in instances.items():
        ensure_roles(server.owner(), instance, {role: own[f"password/{role}"] for role in ROLES[instance]})
    ensure_first_rows(state.owner("state"), [_token(service, own) for service in SERVICES if service != "dispatcher"])


def _token(service: str, own: Values) -> LocalToken:
    def replace() -> str:
        own[f"token/{service}"] = new_service_token()
        return own[f"token/{service}"]

    return LocalToken(
        service, own[f"token/{service}"], replace, [WorkerSettings().runtime] if service == "worker" else None
    )


def _values(service: str, own: Values, home: Home, state: Server, data: Server) -> Values:
    """What deploy/aws/services.py refers to."""
    values = {"tls_ca": own["tls/ca.pem"]}
    if service in LISTENING:
        pem = (home.tls / f"{service}.pem").read_text(encoding="utf-8")
        values |= {"tls_cert": pem, "tls_key": pem}
    if service in ROLE_OF:
        role = ROLE_OF[service]
        values["data_dsn"] = data.address("data", role, own[f"password/{role}"])
    if service == "dispatcher":
        values["state_dsn"] = state.address("state", "dispatcher", own["password/dispatcher"])
        values["secret_keys"] = own["keys/secrets.key"].strip()
        return values
    values["service_token"] = own[f"token/{service}"]
    if service == "gateway":
        key = ensure_issuer_key(home)
        values["user_public_key"] = public_pem(key)
        values["admin_token"] = mint_user_token(key, IdentitySettings(), FIRST_ADMIN, ADMIN_SECONDS)
    return values


def at_rds(host: str) -> Address:
    def address(database: str, user: str, password: str) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@{host}:5432/{database}?sslmode=require"

    return address


async def run(env: Mapping[str, str]) -> None:
    prefix, region = env["SETUP_PREFIX"], env["AWS_REGION"]
    aws = AwsService("secretsmanager", region, env.get("SETUP_ENDPOINT"), unavailable=SecretsUnavailable)
    vault = Vault(aws, prefix)
    try:
        servers = []
        for name in ("STATE", "DATA"):
            master = await vault.value(env[f"SETUP_{name}_SECRET"])
            servers.append(Server(at_rds(env[f"SETUP_{name}_HOST"]), master["username"], master["password"]))
        state, data = servers
        await set_up(vault, prefix, state, data, new_passwords=env.get("SETUP_NEW_PASSWORDS") == "yes")
    finally:
        await aws.close()
    sys.stdout.write("the databases are migrated, and the services have their secrets\n")


if __name__ == "__main__":
    try:
        asyncio.run(run(os.environ))
    except TraceError as refusal:
        sys.exit(f"setup: {refusal}")
