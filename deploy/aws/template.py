"""The parts of a CloudFormation template as plain JSON. cfn-lint, not these helpers, knows what AWS accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

ACCOUNT: Final = "${AWS::AccountId}"
REGION: Final = "${AWS::Region}"
PARTITION: Final = "${AWS::Partition}"


@dataclass
class Template:
    """Collects resources by their logical names, and refuses a name that is there already."""

    parameters: Json = field(default_factory=dict)
    conditions: Json = field(default_factory=dict)
    resources: Json = field(default_factory=dict)
    outputs: Json = field(default_factory=dict)

    def add(self, name: str, kind: str, properties: Json, **attributes: Any) -> None:
        if name in self.resources:
            raise ValueError(f"two resources are called {name}")
        self.resources[name] = {"Type": f"AWS::{kind}", **attributes, "Properties": properties}

    def keep(self, name: str, kind: str, properties: Json, *, how: str = "Retain", **attributes: Any) -> None:
        """Something with data in it: neither an update nor the end of the stack deletes it."""
        self.add(name, kind, properties, DeletionPolicy=how, UpdateReplacePolicy=how, **attributes)

    def document(self) -> Json:
        return {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": "Trace. Rendered by deploy/aws; docs/how-to/run_on_aws.md says how to use it.",
            "Parameters": self.parameters,
            "Conditions": self.conditions,
            "Resources": self.resources,
            "Outputs": self.outputs,
        }


def ref(name: str) -> Json:
    return {"Ref": name}


def attribute(name: str, what: str) -> Json:
    return {"Fn::GetAtt": [name, what]}


def arn_of(name: str) -> Json:
    return attribute(name, "Arn")


def sub(text: str) -> Any:
    return {"Fn::Sub": text} if "${" in text else text


def when(condition: str, then: Any, otherwise: Any) -> Json:
    return {"Fn::If": [condition, then, otherwise]}


def named(text: str) -> Any:
    """A name that begins with that of the deployment."""
    return sub("${Prefix}-" + text)


def arn(service: str, resource: str, *, regional: bool = True) -> Any:
    place = f"{REGION}:{ACCOUNT}" if regional else f":{ACCOUNT}"
    return sub(f"arn:{PARTITION}:{service}:{place}:{resource}")


def tags(name: str) -> list[Json]:
    return [{"Key": "Name", "Value": named(name)}]


def allow(actions: list[str], resources: list[Any], **conditions: Json) -> Json:
    return _statement("Allow", Action=actions, Resource=resources, Condition=conditions)


def deny(**parts: Any) -> Json:
    return _statement("Deny", **parts)


def policy(statements: list[Json]) -> Json:
    return {"Version": "2012-10-17", "Statement": statements}


def acknowledged(**findings: str) -> Json:
    """Findings of checkov that are as they should be, each with the reason."""
    return {"Metadata": {"checkov": {"skip": [{"id": code, "comment": why} for code, why in findings.items()]}}}


def _statement(effect: str, **parts: Any) -> Json:
    return {"Effect": effect, **{name: part for name, part in parts.items() if part}}
