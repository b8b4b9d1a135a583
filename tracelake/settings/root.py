"""All settings in one frozen model, and each of them as an object (`Leaf`).

A field of `Settings` is a value, a group, or a mapping of groups by name (`runtimes`): any number of groups of one
kind, named by the operator of the system. In environment and file such a group is one level deeper:
`TRACE_RUNTIMES__ECS_PLATFORM__QUEUE`, `[runtimes.ecs_platform]`. A mapping may also be of values: `TRACE_SECRETS__KEY`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import StringConstraints, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from tracelake.settings.access import (
    ClientSettings,
    EndpointSettings,
    GatewaySettings,
    IdentitySettings,
    TlsSettings,
    TokenSettings,
)
from tracelake.settings.base import Group, setting
from tracelake.settings.data_plane import QuerySettings, SinkSettings, WorkerSettings
from tracelake.settings.databases import DataSettings, QueueSettings, StateSettings
from tracelake.settings.delivery import DeliverySettings
from tracelake.settings.dispatcher import DispatcherSettings, FlowSettings, LoopSettings
from tracelake.settings.http import HttpSettings
from tracelake.settings.limits import LimitSettings
from tracelake.settings.lite import PostgresSettings, UpSettings
from tracelake.settings.login_rules import LoginRule
from tracelake.settings.profile import AwsSettings
from tracelake.settings.retention import RetentionSettings
from tracelake.settings.rpc_pools import RpcPoolSettings
from tracelake.settings.runtimes import RUNTIMES, EmrSettings, OperatorSettings, RuntimeSettings
from tracelake.settings.secrets.hooks import HookSecret
from tracelake.settings.secrets.jobs import JobSecret
from tracelake.settings.secrets.references import is_reference
from tracelake.settings.secrets.secrets_manager import SecretsManagerSettings
from tracelake.settings.spark import SparkSettings
from tracelake.settings.storage import BundleSettings, CredentialSettings, ObjectSettings
from tracelake.settings.telemetry import FaultSettings, LogSettings, MetricsSettings, TracingSettings
from tracelake.settings.udf import UdfSettings

PREFIX = "TRACE_"
DEFAULT_HOME = Path("~/.trace")
ANY_NAME = "<name>"
"""In a leaf's path, the placeholder for the name of a group."""

SettingName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(_[a-z0-9]+)*$", max_length=64)]
"""Of a group in a mapping. No two underscores together: in a variable's name they part the levels."""


class Settings(BaseSettings):
    """All of them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    home: Path = setting(
        DEFAULT_HOME, "The folder that holds everything: databases, keys, logs, objects.", unit="folder"
    )
    profile: Literal["lite", "aws"] = setting(
        "lite",
        "`aws`: the defaults of queue, objects, credentials, tokens, functions, metrics and secrets are services of"
        " AWS, with the names and places of `aws`. `lite`: those of one machine.",
    )
    aws: AwsSettings = AwsSettings()
    state: StateSettings = StateSettings()
    data: DataSettings = DataSettings()
    queue: QueueSettings = QueueSettings()
    objects: ObjectSettings = ObjectSettings()
    credentials: CredentialSettings = CredentialSettings()
    bundles: BundleSettings = BundleSettings()
    postgres: PostgresSettings = PostgresSettings()
    tls: TlsSettings = TlsSettings()
    http: HttpSettings = HttpSettings()
    dispatcher: DispatcherSettings = DispatcherSettings()
    retention: RetentionSettings = RetentionSettings()
    query: QuerySettings = QuerySettings()
    gateway: GatewaySettings = GatewaySettings()
    endpoints: EndpointSettings = EndpointSettings()
    identity: IdentitySettings = IdentitySettings()
    login_rules: Mapping[SettingName, LoginRule] = {}
    client: ClientSettings = ClientSettings()
    tokens: TokenSettings = TokenSettings()
    loops: LoopSettings = LoopSettings()
    flow: FlowSettings = FlowSettings()
    limits: LimitSettings = LimitSettings()
    runtimes: Mapping[SettingName, RuntimeSettings] = RUNTIMES
    operators: Mapping[SettingName, OperatorSettings] = {}
    rpc_pools: Mapping[SettingName, RpcPoolSettings] = {}
    secrets: Mapping[SettingName, JobSecret] = setting(
        {}, "For jobs that name it in `secrets`, 6 characters or more; only workers get it.", unit="text"
    )
    hook_secrets: Mapping[SettingName, HookSecret] = setting(
        {},
        "For webhook sources that name it: signs their calls. 16 characters or more; several that are valid at the same"
        " time are separated by blanks. Only the Dispatcher gets it.",
        unit="text",
    )
    secrets_manager: SecretsManagerSettings = SecretsManagerSettings()
    worker: WorkerSettings = WorkerSettings()
    sink: SinkSettings = SinkSettings()
    delivery: DeliverySettings = DeliverySettings()
    udf: UdfSettings = UdfSettings()
    emr: EmrSettings = EmrSettings()
    spark: SparkSettings = SparkSettings()
    up: UpSettings = UpSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    faults: FaultSettings = FaultSettings()

    @field_validator("login_rules")
    @classmethod
    def _of_the_issuer(cls, rules: Mapping[str, LoginRule], info: ValidationInfo) -> Mapping[str, LoginRule]:
        """So that rules for one issuer never count for the users of another that takes its place."""
        issuer = info.data["identity"].user_issuer if "identity" in info.data else None
        for name, rule in rules.items():
            if issuer is not None and rule.issuer != issuer:
                raise ValueError(f"the issuer of {name} is {rule.issuer!r}, and identity.user_issuer is {issuer!r}")
        return rules

    @field_validator("aws")
    @classmethod
    def _of_the_profile(cls, aws: AwsSettings, info: ValidationInfo) -> AwsSettings:
        if info.data.get("profile") == "lite" and aws != AwsSettings():
            raise ValueError("it has no effect without the profile aws (TRACE_PROFILE=aws)")
        missing = [name for name in ("region", "account") if getattr(aws, name) is None]
        if info.data.get("profile") == "aws" and missing:
            raise ValueError(f"the profile aws needs aws.{missing[0]}")
        return aws

    @field_validator("udf")
    @classmethod
    def _is_reached_by_lambda(cls, udf: UdfSettings, info: ValidationInfo) -> UdfSettings:
        """Lambda fetches bundles by URLs that the store signs: a function would fail with its first task."""
        objects = info.data.get("objects")
        if udf.invoker == "lambda" and isinstance(objects, ObjectSettings) and objects.backend == "disk":
            raise ValueError("the invoker lambda needs objects.backend: s3, since Lambda cannot read a disk")
        return udf

    @field_validator("emr")
    @classmethod
    def _has_applications_by_trust(cls, emr: EmrSettings, info: ValidationInfo) -> EmrSettings:
        """Workers of an application are used again, so code that is trusted never shares one with code that is not."""
        runtimes: Mapping[str, RuntimeSettings] = info.data.get("runtimes", {})
        objects, trust = info.data.get("objects"), dict[str, tuple[str, bool]]()
        for name, runtime in runtimes.items():
            if runtime.application is None:
                continue
            if emr.role_arn is None:
                raise ValueError(f"runtime {name} has an application, so emr.role_arn must be set")
            if isinstance(objects, ObjectSettings) and objects.backend == "disk":
                raise ValueError(f"runtime {name} needs objects.backend: s3, since EMR Serverless cannot read a disk")
            other, untrusted = trust.setdefault(runtime.application, (name, runtime.untrusted))
            if untrusted != runtime.untrusted:
                raise ValueError(f"runtimes {other} and {name} differ in `untrusted`: each needs an application")
        return emr

    @property
    def object_folder(self) -> Path:
        return (self.objects.folder or self.home / "objects").expanduser().absolute()

    @property
    def task_key_folder(self) -> Path:
        return (self.tokens.key_folder or self.home / "keys" / "task").expanduser().absolute()

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()


@dataclass(frozen=True)
class Leaf:
    """One setting as documents, `trace config show` and error messages show it."""

    path: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "__")

    @property
    def parts(self) -> list[str]:
        return self.path.split(".")

    @property
    def secret(self) -> bool:
        return "SecretStr" in str(self.field.annotation)

    @property
    def unit(self) -> str | None:
        extra = self.field.json_schema_extra
        return str(extra["unit"]) if isinstance(extra, dict) else None

    @property
    def why(self) -> str:
        return self.field.description or ""

    @property
    def default(self) -> Any:
        return None if is_mapping(self.field) else self.field.default

    def of(self, name: str) -> Leaf:
        """The same setting, of the group with that name."""
        return replace(self, path=self.path.replace(ANY_NAME, name))


def leaves() -> Iterator[Leaf]:
    """Every setting; those by name once, with ANY_NAME in the place of the name."""
    for name, field in Settings.model_fields.items():
        group = group_of(field)
        within = f"{name}.{ANY_NAME}" if is_mapping(field) else name
        if group is None:
            yield Leaf(within, field)
        else:
            for inner, leaf in group.model_fields.items():
                yield Leaf(f"{within}.{inner}", leaf)


def leaves_of(settings: Settings) -> Iterator[Leaf]:
    """Every setting that these settings hold: those by name as often as there are names."""
    for leaf in leaves():
        if ANY_NAME not in leaf.path:
            yield leaf
    for leaf in leaves():
        if ANY_NAME in leaf.path:
            yield from (leaf.of(name) for name in getattr(settings, leaf.parts[0]))


def group_of(field: FieldInfo) -> type[Group] | None:
    """The group that a field of `Settings` is, or is a mapping of."""
    kind = get_args(field.annotation)[1] if is_mapping(field) else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Group) else None


def is_mapping(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Mapping


def shown(settings: Settings, leaf: Leaf) -> str:
    """A value for people: of a secret, only that it is set, or where it is fetched."""
    value = value_of(settings, leaf)
    if value is None:
        return ""
    if is_reference(value) and leaf.secret:
        return str(value.get_secret_value())
    return "********" if leaf.secret else str(value)


def value_of(settings: Settings, leaf: Leaf) -> Any:
    value: Any = settings
    for part in leaf.parts:
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value
