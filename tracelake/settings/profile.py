"""The profile `aws`: one group of settings that chooses all adapters of AWS, and names what they use.

Its values lie between those that are set and the defaults, so that each can be set by itself too. A process that gets
its settings as a document has them already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from tracelake.settings.base import URL, Group, setting

REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
FUNCTION_SECONDS: Final = 890
"""Of the 900 s that Lambda gives the runner function; it ends the code a little earlier."""


class AwsSettings(Group):
    """Of the profile `aws`: names, as `deploy/aws` makes them, and the place of every service."""

    name: str = setting(
        "trace",
        "What the names of this deployment's queues, buckets, keys, roles and functions begin with.",
        pattern=r"^[a-z][a-z0-9]{0,9}$",
    )
    region: str | None = setting(
        None, "The region of all services; unset: that of AWS_REGION.", pattern=r"^[a-z0-9-]+$"
    )
    account: str | None = setting(
        None, "The number of the account, which is part of the names of buckets and roles.", pattern=r"^\d{12}$"
    )
    endpoint: str | None = setting(
        None, "One server in place of all services of AWS, such as moto; unset: AWS.", unit="URL", pattern=URL
    )


class ProfileSource(PydanticBaseSettingsSource):
    """What the profile says, where nothing else does."""

    def __init__(self, settings_cls: type[BaseSettings], env: Mapping[str, str]) -> None:
        super().__init__(settings_cls)
        self._env = env

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """What is wrong in the settings so far is said when they are validated."""
        given = self.current_state
        if given.get("profile") != "aws":
            return {}
        named = {"region": region_of(self._env), **_group(given, "aws")}
        try:
            return values_of(AwsSettings.model_validate(named), given)
        except ValidationError:
            return {}


def region_of(env: Mapping[str, str]) -> str | None:
    return next((env[name] for name in REGION_VARIABLES if env.get(name)), None)


def values_of(aws: AwsSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given`: what is set. A group whose adapter is another's is left alone."""
    if aws.region is None or aws.account is None:
        return {"aws": {"region": aws.region}}  # the settings are refused, for what is missing
    place, name = {"region": aws.region, "endpoint": aws.endpoint}, aws.name
    bucket, scratch = (f"{name}-{kind}-{aws.account}-{aws.region}" for kind in ("data", "scratch"))
    values: dict[str, Any] = {"aws": {"region": aws.region}, "secrets_manager": place}
    values["metrics"] = {"cloudwatch_namespace": f"Trace/{name}", **_named("cloudwatch", place)}
    if _chooses(given, "queue", "backend", "sqs"):
        values["queue"] = {"backend": "sqs", "prefix": f"{name}-", "cloudwatch_endpoint": aws.endpoint, **place}
    if _chooses(given, "tokens", "signer", "kms"):
        values["tokens"] = {"signer": "kms", "kms_alias_prefix": f"alias/{name}-task-", **_named("kms", place)}
    elif _chooses(given, "tokens", "signer", "kms_sealed"):
        values["tokens"] = _named("kms", place)
    if _chooses(given, "udf", "invoker", "lambda"):
        values["udf"] = {"invoker": "lambda", "lambda_function": f"{name}-runner", **_named("lambda", place)}
        values["runtimes"] = {"lambda": {"timeout_seconds": FUNCTION_SECONDS}}
    role = {"role_arn": f"arn:aws:iam::{aws.account}:role/{name}-job"} if _has_application(given) else {}
    values["emr"] = {**place, **role}
    if _chooses(given, "objects", "backend", "s3"):
        values["objects"] = {"backend": "s3", "bucket": bucket, "scratch_bucket": scratch, **place}
        values["credentials"] = {"role_arn": f"arn:aws:iam::{aws.account}:role/{name}-task", **place}
        stored = _group(given, "objects").get("bucket", bucket)
        values["query"] = {"export_prefix": f"s3://{stored}/exports/"}
    return values


def _chooses(given: Mapping[str, Any], group: str, switch: str, ours: str) -> bool:
    return bool(_group(given, group).get(switch, ours) == ours)


def _has_application(given: Mapping[str, Any]) -> bool:
    runtimes = _group(given, "runtimes")
    return any(_group(runtimes, name).get("application") for name in runtimes)


def _group(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = given.get(name)
    return found if isinstance(found, Mapping) else {}


def _named(service: str, place: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{service}_{what}": value for what, value in place.items()}
