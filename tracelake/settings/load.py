"""Reads the settings: environment, then `trace.toml`, profile and defaults; or a document from the parent process."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from tracelake.domain.text.validation_messages import sentence, wanted
from tracelake.errors import SettingsError
from tracelake.settings.base import Group
from tracelake.settings.profile import ProfileSource, values_of
from tracelake.settings.root import ANY_NAME, DEFAULT_HOME, PREFIX, Leaf, Settings, is_mapping, leaves
from tracelake.settings.secrets.references import is_reference
from tracelake.settings.telemetry import FaultSettings

OF_KUBERNETES: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""What it sets in every pod for each service of the namespace, by the service's name."""


def load_settings(env: Mapping[str, str], *, home: Path | None = None) -> Settings:
    """Environment, then `<home>/trace.toml`, the profile, defaults. `home` (the option `--home`) wins over both."""
    _refuse_unknown_variables(env)
    place = (home or Path(env.get(f"{PREFIX}HOME") or DEFAULT_HOME)).expanduser().absolute()
    return _refuse_faults(_build(env, _read_file(place / "trace.toml"), {"home": place}, by_profile=True))


def _refuse_faults(settings: Settings) -> Settings:
    """A variable that was left over, or a file that was copied, must not arm a process."""
    if settings.faults != FaultSettings():
        raise SettingsError(
            "a process is armed to fail only by the test that starts it, on standard input",
            where="faults.point",
            hint="take `faults` out of the environment and of trace.toml",
        )
    return settings


def settings_from_document(document: str) -> Settings:
    """The settings that a parent process sent on standard input: the only source."""
    try:
        values = json.loads(document)
    except json.JSONDecodeError as wrong:
        raise SettingsError(f"the settings on standard input are not JSON: {wrong}", where="stdin") from None
    if not isinstance(values, dict):
        raise SettingsError("the settings on standard input are a JSON object", where="stdin")
    return _build({}, {}, values)


def to_document(settings: Settings) -> str:
    """The other end of `settings_from_document`. Holds secrets in the clear: only for a pipe."""
    return json.dumps(settings.model_dump(exclude_none=True), default=_reveal)


def origin(leaf: Leaf, env: Mapping[str, str], settings: Settings) -> str:
    """Where the value came from, in the order of `load_settings`."""
    if leaf.variable in env:
        return leaf.variable
    if _within(_read_file(settings.home / "trace.toml"), leaf.parts):
        return "trace.toml"
    by_profile = values_of(settings.aws, settings.model_dump()) if settings.profile == "aws" else {}
    return "profile aws" if any(value is not None for value in _values_at(by_profile, leaf.parts)) else "default"


def _build(
    env: Mapping[str, str], file: Mapping[str, Any], given: Mapping[str, Any], *, by_profile: bool = False
) -> Settings:
    """`by_profile`: not for a document. A process has no more than was put into it."""

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
            set_there = (init_settings, _Environment(settings_cls, env), _File(settings_cls, file))
            profile = (ProfileSource(settings_cls, env),) if by_profile else ()
            return (*set_there, *profile, _Named(settings_cls))

    try:
        return Loaded(**given)
    except ValidationError as wrong:
        raise _as_settings_error(wrong) from None


class _Environment(EnvSettingsSource):
    """The environment as it was passed in: an import never reads the real one."""

    def __init__(self, settings_cls: type[BaseSettings], env: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in env.items() if name.startswith(PREFIX)}
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given

    def __call__(self) -> dict[str, Any]:
        """Lists are given as JSON; within groups by name that is left to us."""
        values = super().__call__()
        for leaf in leaves():
            if ANY_NAME in leaf.path and "list" in str(leaf.field.annotation):
                for group in values.get(leaf.parts[0], {}).values():
                    _read_list(group, leaf.parts[-1])
        return values


def _read_list(group: dict[str, Any], name: str) -> None:
    if name in group:
        with suppress(ValueError, TypeError):  # what is no JSON is refused as no list, without being repeated
            group[name] = json.loads(group[name])


class _File(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = dict(values)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


class _Named(PydanticBaseSettingsSource):
    """The groups by name that there are anyway: what is set elsewhere is laid over them, field by field."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return _plain(field.default), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields
        return {name: _plain(field.default) for name, field in fields.items() if is_mapping(field)}


def _plain(groups: Mapping[str, Group]) -> dict[str, Any]:
    return {name: group.model_dump(exclude_unset=True) for name, group in groups.items()}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as wrong:
        raise SettingsError(f"the settings file cannot be read: {wrong}", where=str(path)) from None
    if "home" in values:
        raise SettingsError("`home` cannot be set in the file that is in it", where=str(path), hint="use --home")
    for leaf in leaves():
        if leaf.secret and not all(map(is_reference, _values_at(values, leaf.parts))):
            raise SettingsError(
                f"{leaf.path} is a secret, and every process of yours can read this file",
                where=str(path),
                hint=f"take it out and set {leaf.variable} in the environment of `trace up`; aws-secret:NAME may stay",
            )
    return values


def _within(values: Any, parts: Sequence[str]) -> bool:
    """Whether a file's values set what the path leads to, under any name where the path leaves it open."""
    return any(True for _ in _values_at(values, parts))


def _values_at(values: Any, parts: Sequence[str]) -> Iterator[Any]:
    if not parts:
        yield values
    elif isinstance(values, dict):
        for name in values if parts[0] == ANY_NAME else [parts[0]]:
            if name in values:
                yield from _values_at(values[name], parts[1:])


def _refuse_unknown_variables(env: Mapping[str, str]) -> None:
    for name in _unknown_variables(env):
        if not _is_stray(name):
            known = {leaf.of(_named_in(name)).variable for leaf in leaves()}
            in_capitals = any(_means(leaf, name.upper()) for leaf in leaves())
            hint = f"in capitals: {name.upper()}" if in_capitals else _did_you_mean(name, known)
            raise SettingsError(f"there is no setting {name}", where=name, hint=hint)


def stray_variables(env: Mapping[str, str]) -> list[str]:
    """Variables that begin like ours and are meant for another program: ignored, and worth a warning.

    Kubernetes, for one, sets TRACE_GATEWAY_PORT=tcp://... in every pod beside a service named trace-gateway.
    """
    return [name for name in _unknown_variables(env) if _is_stray(name)]


def _unknown_variables(env: Mapping[str, str]) -> list[str]:
    return [
        name for name in sorted(env) if name.startswith(PREFIX) and not any(_means(leaf, name) for leaf in leaves())
    ]


def _is_stray(name: str) -> bool:
    """Whether it is no misspelt setting: it has no group, and resembles no setting without one."""
    rest = name.removeprefix(PREFIX)
    own = {leaf.variable.removeprefix(PREFIX) for leaf in leaves()}
    groups = {variable.partition("__")[0] for variable in own}
    is_like_ours = bool(get_close_matches(rest.upper(), groups, n=1, cutoff=0.7))
    return "__" not in rest and (not is_like_ours or OF_KUBERNETES.fullmatch(rest) is not None)


def _means(leaf: Leaf, variable: str) -> bool:
    parts, given = leaf.variable.split("__"), variable.split("__")
    return len(parts) == len(given) and all(map(_is_part, parts, given))


def _is_part(part: str, given: str) -> bool:
    """A name that is chosen is in capitals too: two variables that say the same name could say two values."""
    return part == given or (part == ANY_NAME.upper() and given == given.upper())


def _named_in(variable: str) -> str:
    """The name that the person gave to a group, if the variable is of one: a suggestion keeps it."""
    parts = variable.split("__")
    return parts[1].lower() if len(parts) == 3 else ANY_NAME  # noqa: PLR2004 - mapping, name, field


def _as_settings_error(wrong: ValidationError) -> SettingsError:
    problems = [_problem(error) for error in wrong.errors(include_url=False)]
    message = "; ".join(message for _, message, _ in problems)
    return SettingsError(message, where=problems[0][0], hint=problems[0][2])


def _problem(error: ErrorDetails) -> tuple[str, str, str]:
    """Path, sentence and hint. A value is repeated only if it is known to be no secret."""
    parts = [str(part) for part in error["loc"]]
    path = ".".join(parts)
    found = next((leaf for leaf in leaves() if _leads_to(leaf, parts)), None)
    if error["type"] == "extra_forbidden":
        known = {leaf.of(parts[1] if len(parts) > 1 else ANY_NAME).path for leaf in leaves()}
        return path, f"there is no setting {path}", _did_you_mean(path, known)
    if parts[-1] == "[key]":
        words = "at most 64 small letters and digits, a letter first, words joined by one underscore"
        return parts[0], f"{parts[0]}: {parts[1]!r} cannot be a name: {words}", "rename it"
    given = f" ({error['input']!r} was given)" if found and not found.secret else ""
    words = f"{asked} is wanted" if (asked := wanted(error)) else sentence(error)
    usual = (
        f", such as {found.default}" if found and error["type"] == "string_pattern_mismatch" and found.default else ""
    )
    return path, f"{path}: {words}{usual}{given}", "`trace config show` lists every setting"


def _leads_to(leaf: Leaf, parts: Sequence[str]) -> bool:
    return len(parts) == len(leaf.parts) and all(a in (b, ANY_NAME) for a, b in zip(leaf.parts, parts, strict=True))


def _did_you_mean(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "`trace config show` lists every setting"


def _reveal(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
