"""Every setting of Trace: read once, frozen, handed in.

Three places are read, the first that has a value wins: `TRACE_` environment variables (`TRACE_SPARK__MASTER` is
`spark.master`), `trace.toml` in the home folder, the default below. A process under `trace up` gets its settings as a
document on standard input instead, so that a secret never stands in its environment, arguments or files.

Secrets are not taken from `trace.toml`: every process of the user can read that file, and a worker must never be able
to find the state database's address.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from trace_platform.errors import SettingsError

PREFIX = "TRACE_"
DEFAULT_HOME = Path("~/.trace")


def _setting(default: Any, why: str, *, unit: str | None = None, **limits: Any) -> Any:
    return Field(default=default, description=why, json_schema_extra={"unit": unit} if unit else None, **limits)


def _dsn(why: str) -> Any:
    return _setting(None, why, unit="postgresql:// URL")


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StateSettings(Group):
    """The control plane's database. Only the Dispatcher has it."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one; it must own the database it names.")
    pool_max: int = _setting(
        8, "Connections a Dispatcher keeps; two cores saturate at about 8.", unit="count", ge=1, le=200
    )


class DataSettings(Group):
    """The data plane's database: hot tables and buffered datasets."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one, with the right to write.")
    query_dsn: SecretStr | None = _dsn("The same database through a role that can only read, for the Query service.")


class QueueSettings(Group):
    """The Lite queue's database."""

    dsn: SecretStr | None = _dsn("A queue database of yours in place of the embedded one.")


class ObjectSettings(Group):
    """Where files lie: the Parquet files of datasets, and what else is too large for a message."""

    folder: Path | None = _setting(None, "The folder of the disk store; unset: objects in the home.", unit="folder")


class PostgresSettings(Group):
    """The embedded servers."""

    os_user: str = _setting("nobody", "Who the servers run as when Trace is started by root; Postgres refuses root.")
    shared_buffers: str = _setting(
        "256MB", "Memory for pages, for each of the two servers.", unit="Postgres size", pattern=r"^\d+(kB|MB|GB)$"
    )
    start_seconds: float = _setting(
        60.0, "How long a server may take to answer; a long crash replay needs more.", unit="s", gt=0
    )


class TlsSettings(Group):
    """Certificate, key and CA of the doors. Lite makes its own in the home folder."""

    ca: Path | None = _setting(None, "The CA that this process trusts when it calls another door.", unit="PEM file")
    cert: Path | None = _setting(None, "The certificate this process shows.", unit="PEM file")
    key: Path | None = _setting(None, "The key of that certificate.", unit="PEM file")


class DispatcherSettings(Group):
    """The control plane's two doors."""

    host: str = _setting("127.0.0.1", "The address both doors listen on.")
    task_port: int = _setting(0, "Port of the task door, /v1/task/*; 0 takes a free one.", unit="port", ge=0, le=65535)
    internal_port: int = _setting(
        0, "Port of the internal door, /internal/*; 0 takes a free one.", unit="port", ge=0, le=65535
    )


class QuerySettings(Group):
    """The Query service's two doors."""

    host: str = _setting("127.0.0.1", "The address both doors listen on.")
    task_port: int = _setting(
        0, "Port of the task door, /v1/task/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )
    internal_port: int = _setting(
        0, "Port of the internal door, /v1/query; 0 takes a free one.", unit="port", ge=0, le=65535
    )


class GatewaySettings(Group):
    """The only public door."""

    host: str = _setting("127.0.0.1", "The address it listens on; loopback until you mean to open it.")
    port: int = _setting(0, "Its port; 0 takes a free one.", unit="port", ge=0, le=65535)


class EndpointSettings(Group):
    """Where the other processes' doors are. `trace up` fills these in."""

    dispatcher_task: str | None = _setting(None, "The Dispatcher's task door.", unit="https:// URL")
    dispatcher_internal: str | None = _setting(None, "The Dispatcher's internal door.", unit="https:// URL")
    query_internal: str | None = _setting(None, "The Query service's internal door.", unit="https:// URL")


class IdentitySettings(Group):
    """Who a process is, and whom the Gateway believes."""

    worker_token: SecretStr | None = _setting(None, "What a trusted process shows at the internal doors.")
    user_issuer: str = _setting("trace-local", "The `iss` that a user's token must carry.")
    user_audience: str = _setting("trace", "The `aud` that a user's token must carry.")
    user_public_key: str | None = _setting(
        None, "The local issuer's public key; `trace up` fills it in.", unit="PEM text"
    )
    user_jwks_url: str | None = _setting(
        None,
        "Where an OIDC issuer publishes its keys (`jwks_uri`); set, it takes the place of the local issuer's key.",
        unit="https:// URL",
        pattern=r"^https://",
    )


class ClientSettings(Group):
    """Which system the verbs of the command line speak to. Unset: the one that runs in the home folder."""

    gateway_url: str | None = _setting(None, "The Gateway of that system.", unit="https:// URL", pattern=r"^https://")
    ca: Path | None = _setting(
        None, "The CA of the Gateway's certificate; unset: those this machine trusts.", unit="PEM file"
    )
    token: SecretStr | None = _setting(None, "Your token, from your identity provider or from `trace token`.")


class TokenSettings(Group):
    """Capability tokens of tasks: the keys that sign them, and how verifiers keep up with the keys."""

    issuer: str = _setting(
        "trace-dispatcher", "The `iss` of every capability; a token of another deployment is refused by it."
    )
    key_folder: Path | None = _setting(
        None,
        "Private keys, one PEM file each; unset: keys/task in the home. All Dispatchers must see the same folder.",
        unit="folder",
    )
    rotation_days: int = _setting(
        30, "A key that has signed for so long is replaced by a new one.", unit="days", ge=1, le=3650
    )
    overlap_seconds: float = _setting(
        300.0, "How long a new key is published before it signs; every verifier must get to see it.", unit="s", ge=2
    )
    max_life_seconds: int = _setting(
        86400, "The longest life of a token; a longer task renews it by its heartbeats.", unit="s", ge=600, le=86400
    )
    refresh_floor_seconds: float = _setting(
        5.0, "A verifier fetches the keys at most this often, whatever key ids it is shown.", unit="s", ge=1, le=60
    )
    remembered: int = _setting(
        20_000, "Verified tokens that a process remembers, about 2 kB each; 0 verifies each time.", unit="count", ge=0
    )

    @model_validator(mode="after")
    def _overlap_outlasts_caches(self) -> Self:
        if self.overlap_seconds < 2 * self.refresh_floor_seconds:
            raise ValueError("overlap_seconds must be at least twice refresh_floor_seconds")
        return self


class WorkerSettings(Group):
    """The worker: which tasks it takes, and how many at once."""

    runtime: str = _setting("ecs_platform", "The runtime whose wake-ups it waits for.", pattern=r"^[a-z][a-z0-9_]*$")
    concurrency: int = _setting(
        8, "Tasks in hand at once; Spark shares its cores among them.", unit="count", ge=1, le=512
    )
    files_folder: Path | None = _setting(
        None, "Where the files lie that jobs may read (`read_files`); unset: they may read none.", unit="folder"
    )


class SparkSettings(Group):
    """Where rows move."""

    master: str = _setting("local[*]", "The Spark master; `local[*]` is this machine, all cores.")
    remote: str | None = _setting(None, "A Spark Connect server in place of a master.", unit="sc:// URL")
    driver_memory: str = _setting("1g", "Heap of the process that drives Spark.", unit="JVM size", pattern=r"^\d+[mg]$")
    shuffle_partitions: int = _setting(4, "Partitions after a shuffle; about twice the cores.", unit="count", ge=1)


class UpSettings(Group):
    """`trace up`: how the supervisor starts, watches and restarts."""

    port_base: int = _setting(
        7400, "The first of the ports that the doors and servers take; 0 takes free ones.", unit="port", ge=0, le=65500
    )
    backoff_seconds: float = _setting(
        0.5, "Wait before the first restart of a crashed process; it doubles.", unit="s", gt=0
    )
    backoff_max_seconds: float = _setting(30.0, "The longest wait between restarts.", unit="s", gt=0)
    steady_seconds: float = _setting(
        60.0, "A process that ran this long is forgiven its earlier crashes.", unit="s", gt=0
    )
    start_seconds: float = _setting(
        120.0, "How long a process may take to be ready before it is restarted.", unit="s", gt=0
    )
    watchdog_seconds: float = _setting(
        30.0, "A process silent for so long hangs, and is restarted; it speaks three times as often.", unit="s", ge=3
    )
    stop_seconds: float = _setting(20.0, "How long a process may take to end before it is killed.", unit="s", gt=0)
    log_megabytes: int = _setting(
        50, "A process's log is turned over at this size; one old log is kept.", unit="MB", ge=1
    )

    @model_validator(mode="after")
    def _backoff_grows(self) -> Self:
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError("backoff_max_seconds must not be smaller than backoff_seconds")
        return self


class LogSettings(Group):
    """What processes say."""

    level: Literal["debug", "info", "warning", "error"] = _setting("info", "The least that is said.")
    format: Literal["json", "console"] = _setting("json", "One JSON object a line, or lines for eyes.")


class Settings(BaseSettings):
    """All of them."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    home: Path = _setting(
        DEFAULT_HOME, "The folder that holds everything: databases, keys, logs, objects.", unit="folder"
    )
    state: StateSettings = StateSettings()
    data: DataSettings = DataSettings()
    queue: QueueSettings = QueueSettings()
    objects: ObjectSettings = ObjectSettings()
    postgres: PostgresSettings = PostgresSettings()
    tls: TlsSettings = TlsSettings()
    dispatcher: DispatcherSettings = DispatcherSettings()
    query: QuerySettings = QuerySettings()
    gateway: GatewaySettings = GatewaySettings()
    endpoints: EndpointSettings = EndpointSettings()
    identity: IdentitySettings = IdentitySettings()
    client: ClientSettings = ClientSettings()
    tokens: TokenSettings = TokenSettings()
    worker: WorkerSettings = WorkerSettings()
    spark: SparkSettings = SparkSettings()
    up: UpSettings = UpSettings()
    log: LogSettings = LogSettings()

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


def load_settings(env: Mapping[str, str], *, home: Path | None = None) -> Settings:
    """Environment, then `<home>/trace.toml`, then defaults. `home` (the option `--home`) wins over both."""
    _refuse_unknown_variables(env)
    place = (home or Path(env.get(f"{PREFIX}HOME") or DEFAULT_HOME)).expanduser().absolute()
    return _build(env, _read_file(place / "trace.toml"), {"home": place})


def settings_from_document(document: str) -> Settings:
    """What a parent handed over on standard input: the only source, so nothing leaks in from elsewhere."""
    try:
        values = json.loads(document)
    except json.JSONDecodeError as wrong:
        raise SettingsError(f"the settings on standard input are not JSON: {wrong}", where="stdin") from None
    return _build({}, {}, values)


def to_document(settings: Settings) -> str:
    """The other end of `settings_from_document`. Holds secrets in the clear: only for a pipe."""
    return json.dumps(settings.model_dump(exclude_none=True), default=_reveal)


@dataclass(frozen=True)
class Leaf:
    """One setting as documents, `trace config show` and error messages speak of it."""

    path: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "__")

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
        return self.field.default


def leaves() -> Iterator[Leaf]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            for inner, leaf in field.annotation.model_fields.items():
                yield Leaf(f"{name}.{inner}", leaf)
        else:
            yield Leaf(name, field)


def shown(settings: Settings, leaf: Leaf) -> str:
    """A value for eyes: a secret is only said to be there."""
    value: Any = settings
    for part in leaf.path.split("."):
        value = getattr(value, part)
    if value is None:
        return ""
    return "********" if leaf.secret else str(value)


def origin(leaf: Leaf, env: Mapping[str, str], home: Path) -> str:
    """Where the value came from, in the order of `load_settings`."""
    if leaf.variable in env:
        return leaf.variable
    at: Any = _read_file(home / "trace.toml")
    for part in leaf.path.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    return "trace.toml" if at is not None else "default"


def _build(env: Mapping[str, str], file: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del env_settings, dotenv_settings, file_secret_settings
            return (init_settings, _Environment(settings_cls, env), _File(settings_cls, file))

    try:
        return Loaded(**given)
    except ValidationError as wrong:
        raise _as_settings_error(wrong) from None


class _Environment(EnvSettingsSource):
    """The environment as it was handed in: an import never reads the real one."""

    def __init__(self, settings_cls: type[BaseSettings], env: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in env.items() if name.startswith(PREFIX)}
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given


class _File(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = dict(values)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as wrong:
        raise SettingsError(f"the settings file cannot be read: {wrong}", where=str(path)) from None
    if "home" in values:
        raise SettingsError("`home` cannot be set in the file that lies in it", where=str(path), hint="use --home")
    for leaf in leaves():
        if leaf.secret and _within(values, leaf.path):
            raise SettingsError(
                f"{leaf.path} is a secret, and every process of yours can read this file",
                where=str(path),
                hint=f"take it out and set {leaf.variable} in the environment of `trace up`",
            )
    return values


def _within(values: Mapping[str, Any], path: str) -> bool:
    group, _, name = path.partition(".")
    inner = values.get(group)
    return isinstance(inner, dict) and name in inner


def _refuse_unknown_variables(env: Mapping[str, str]) -> None:
    known = {leaf.variable for leaf in leaves()}
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"there is no setting {name}", where=name, hint=_did_you_mean(name, known))


def _as_settings_error(wrong: ValidationError) -> SettingsError:
    problems = []
    known = {leaf.path for leaf in leaves()}
    secret = {leaf.path for leaf in leaves() if leaf.secret}
    for error in wrong.errors(include_url=False):
        path = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            problems.append((path, f"there is no setting {path}", _did_you_mean(path, known)))
        else:
            given = (
                ""
                if path in secret or isinstance(error["input"], dict | BaseModel)
                else f" ({error['input']!r} was given)"
            )
            said = error["msg"].removeprefix("Value error, ")
            problems.append((path, f"{path}: {said}{given}", "`trace config show` lists every setting"))
    message = "; ".join(message for _, message, _ in problems)
    return SettingsError(message, where=problems[0][0], hint=problems[0][2])


def _did_you_mean(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "`trace config show` lists every setting"


def _reveal(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
