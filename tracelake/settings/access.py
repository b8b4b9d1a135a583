"""Settings of listeners, certificates, identities and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr, field_validator, model_validator

from tracelake.settings.base import URL, Group, setting
from tracelake.settings.secrets.references import is_reference


class TlsSettings(Group):
    """Certificate, key and CA of the listeners. Lite makes its own in the home folder."""

    ca: Path | None = setting(None, "The CA that this process trusts when it calls another.", unit="PEM file")
    cert: Path | None = setting(None, "The certificate this process shows.", unit="PEM file")
    key: Path | None = setting(None, "The key of that certificate.", unit="PEM file")


class GatewaySettings(Group):
    """The only public API."""

    host: str = setting("127.0.0.1", "The address it listens on; loopback until you mean to open it.")
    port: int = setting(0, "Its port; 0 takes a free one.", unit="port", ge=0, le=65535)


class EndpointSettings(Group):
    """The addresses of the other processes' APIs. `trace up` fills these in."""

    dispatcher_task: str | None = setting(None, "The Dispatcher's task API.", unit="https:// URL")
    dispatcher_internal: str | None = setting(None, "The Dispatcher's internal API.", unit="https:// URL")
    query_task: str | None = setting(None, "The Query service's task API.", unit="https:// URL")
    query_internal: str | None = setting(None, "The Query service's internal API.", unit="https:// URL")
    delivery_internal: str | None = setting(None, "The delivery process's internal API.", unit="https:// URL")


class IdentitySettings(Group):
    """The identity of a process, and the issuer that the Gateway trusts."""

    service_token: SecretStr | None = setting(
        None, "The token of this process for internal APIs, from `trace service-token create`."
    )
    service_token_file: Path | None = setting(
        None,
        "The file with that token, instead; a changed file is read within a second, without a restart.",
        unit="file",
    )
    user_issuer: str = setting("trace-local", "The `iss` that a user's token must carry.")
    user_audience: str = setting("trace", "The `aud` that a user's token must carry.")
    user_public_key: str | None = setting(
        None, "The local issuer's public key; `trace up` fills it in.", unit="PEM text"
    )
    user_token_max_days: int = setting(
        366, "A user's token that is valid for longer is refused, whatever its issuer.", unit="days", ge=1, le=3660
    )
    user_jwks_url: str | None = setting(
        None,
        "Where an OIDC issuer publishes its keys (`jwks_uri`); set, it takes the place of the local issuer's key.",
        unit="https:// URL",
        pattern=r"^https://",
    )

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.service_token is not None and self.service_token_file is not None:
            raise ValueError("service_token and service_token_file are both set: only one of them is used")
        return self


class ClientSettings(Group):
    """Which system the command line calls. Unset, or with `--home`: the one in the home folder."""

    gateway_url: str | None = setting(None, "The Gateway of that system.", unit="https:// URL", pattern=r"^https://")
    ca: Path | None = setting(
        None, "The CA of the Gateway's certificate; unset: those this machine trusts.", unit="PEM file"
    )
    token: SecretStr | None = setting(None, "Your token, from your identity provider or from `trace token`.")

    @field_validator("token")
    @classmethod
    def _is_no_reference(cls, given: SecretStr | None) -> SecretStr | None:
        if is_reference(given):
            raise ValueError("only processes fetch secrets; the command line needs the token itself")
        return given


class TokenSettings(Group):
    """Capability tokens of tasks: the keys that sign them, and how verifiers keep up with the keys."""

    signer: Literal["pem", "kms", "kms_sealed"] = setting(
        "pem",
        "Which keys sign: those of PEM files; those of KMS, one request for each token; or data keys that a key of KMS"
        " encrypts, in the object store, which sign in the Dispatchers.",
    )
    kms_region: str = setting("us-east-1", "The region of the keys in KMS.", pattern=r"^[a-z0-9-]+$")
    kms_endpoint: str | None = setting(None, "The server of KMS; unset: AWS.", unit="URL", pattern=URL)
    kms_alias_prefix: str = setting(
        "alias/trace-task-",
        "Keys of KMS with an alias that begins so sign; a key of yours is added by such an alias.",
        pattern=r"^alias/[A-Za-z0-9/_-]{1,200}$",
    )
    kms_sealing_key: str | None = setting(
        None,
        "The key of KMS that encrypts data keys, by its id, ARN or alias; needed by the signer kms_sealed.",
        pattern=r"^[A-Za-z0-9:/_-]{1,2048}$",
    )

    issuer: str = setting(
        "trace-dispatcher", "The `iss` of every capability; a token of another deployment is refused by it."
    )
    key_folder: Path | None = setting(
        None,
        "Private keys, one PEM file each; unset: keys/task in the home. All Dispatchers must see the same folder.",
        unit="folder",
    )
    rotation_days: int = setting(
        30, "A key that has signed for so long is replaced by a new one.", unit="days", ge=1, le=3650
    )
    overlap_seconds: float = setting(
        300.0, "How long a new key is published before it signs; every verifier must get to see it.", unit="s", ge=2
    )
    max_life_seconds: int = setting(
        86400, "The longest life of a token; a longer task renews it by its heartbeats.", unit="s", ge=600, le=86400
    )
    refresh_floor_seconds: float = setting(
        5.0, "A verifier fetches the keys at most this often, whatever key ids it is shown.", unit="s", ge=1, le=60
    )
    remembered: int = setting(
        20_000, "Verified tokens that a process remembers, about 2 kB each; 0 verifies each time.", unit="count", ge=0
    )

    @model_validator(mode="after")
    def _overlap_outlasts_caches(self) -> Self:
        if self.overlap_seconds < 2 * self.refresh_floor_seconds:
            raise ValueError("overlap_seconds must be at least twice refresh_floor_seconds")
        return self

    @model_validator(mode="after")
    def _of_one_signer(self) -> Self:
        if self.signer != "pem" and self.key_folder is not None:
            raise ValueError(f"key_folder belongs to the signer pem; the signer is {self.signer}")
        if (self.signer == "kms_sealed") != (self.kms_sealing_key is not None):
            raise ValueError("the signer kms_sealed needs kms_sealing_key, and no other signer has one")
        defaults = type(self).model_fields
        names = ("kms_region", "kms_endpoint", "kms_alias_prefix")
        given = [name for name in names if getattr(self, name) != defaults[name].default]
        if self.signer == "pem" and given:
            raise ValueError(f"{given[0]} belongs to the signer kms; the signer is pem")
        return self
