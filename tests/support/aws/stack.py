"""The rendered template with every reference resolved, as it would be in one account and region."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support import ROOT

TEMPLATE: Final = ROOT / "deploy" / "aws" / "trace.json"
ACCOUNT, REGION, PREFIX = "123456789012", "eu-central-1", "trace"
GIVEN: Final = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::NoValue": "",
    "Image": "registry.example/trace:1",
    "CertificateArn": f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/1",
    "S3PrefixList": "pl-1",
    "RunnerBucket": "artifacts",
    "RunnerKey": "runner.zip",
}
APPLICATION: Final = "AWS::EMRServerless::Application"
ARNS: Final = {
    "AWS::IAM::Role": "arn:aws:iam::{account}:role/{name}",
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::SQS::Queue": "arn:aws:sqs:{region}:{account}:{name}",
    "AWS::KMS::Key": "arn:aws:kms:{region}:{account}:key/{name}",
    "AWS::Lambda::Function": "arn:aws:lambda:{region}:{account}:function:{name}",
    APPLICATION: "arn:aws:emr-serverless:{region}:{account}:/applications/{name}",
    "AWS::SecretsManager::Secret": "arn:aws:secretsmanager:{region}:{account}:secret:{name}-AbCdEf",
}
NAMES: Final = ("RoleName", "BucketName", "QueueName", "FunctionName", "Name")


def template() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Stack:
    names: Mapping[str, str]
    """Physical names that differ from those of the template, by logical names."""
    document: Mapping[str, Any]

    @classmethod
    def of(cls, **names: str) -> Stack:
        return cls(names, template())

    def resource(self, logical: str) -> dict[str, Any]:
        """Its properties, resolved."""
        found: dict[str, Any] = self.resolve(self.document["Resources"][logical]["Properties"])
        return found

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        resources = self.document["Resources"].items()
        return {name: self.resource(name) for name, body in resources if body["Type"] == f"AWS::{kind}"}

    def arn(self, logical: str) -> str:
        kind = self.document["Resources"][logical]["Type"]
        return ARNS[kind].format(account=ACCOUNT, region=REGION, name=self._name(logical))

    def rights(self, role: str) -> list[dict[str, Any]]:
        """The identity policies of a role."""
        return [item["PolicyDocument"] for item in self.resource(role).get("Policies", [])]

    def trust(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resource(role)["AssumeRolePolicyDocument"]
        return found

    def resolve(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
        match value:
            case {"Ref": str(name)}:
                return self._ref(name)
            case {"Fn::GetAtt": [str(name), str(what)]}:
                return self._attribute(name, what)
            case {"Fn::Sub": [str(text), dict(values)]}:
                for name, given in values.items():
                    text = text.replace(f"${{{name}}}", self.resolve(given))
                return self.resolve({"Fn::Sub": text})
            case {"Fn::Sub": str(text)}:
                return re.sub(r"\$\{([\w:.]+)\}", lambda found: self._variable(found[1]), text)
            case {"Fn::If": [_, then, _]}:
                return self.resolve(then)
            case dict():
                return {key: self.resolve(item) for key, item in value.items()}
            case list():
                return [self.resolve(item) for item in value]
        return value

    def _variable(self, name: str) -> str:
        logical, _, what = name.partition(".")
        return str(self._attribute(logical, what) if what else self._ref(name))

    def _ref(self, name: str) -> Any:
        if name in self.document["Parameters"] or name.startswith("AWS::"):
            return GIVEN.get(name, self.document["Parameters"].get(name, {}).get("Default"))
        kind = self.document["Resources"][name]["Type"]
        return self.arn(name) if kind == "AWS::SecretsManager::Secret" else self._name(name)

    def _attribute(self, name: str, what: str) -> str:
        kind = self.document["Resources"][name]["Type"]
        if what == "Arn" and kind in ARNS:
            return self.arn(name)
        if what == "MasterUserSecret.SecretArn":
            return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:rds!db-{name}-AbCdEf"
        return self._name(name) if what in NAMES else f"{name}.{what}"

    def _name(self, logical: str) -> str:
        if logical in self.names:
            return self.names[logical]
        if self.document["Resources"][logical]["Type"] == APPLICATION:
            return f"00{logical.lower()}"  # an id, whatever its name is
        properties = self.document["Resources"][logical]["Properties"]
        given = next((properties[key] for key in NAMES if key in properties), None)
        return str(self.resolve(given)) if isinstance(given, str | dict) else logical


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Its variables, without those that ECS fetches."""
    return {item["Name"]: item["Value"] for item in container["Environment"]}


def containers(stack: Stack) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each with its name and its task definition."""
    for definition in stack.of_type("ECS::TaskDefinition").values():
        for container in definition["ContainerDefinitions"]:
            yield container["Name"], container, definition
