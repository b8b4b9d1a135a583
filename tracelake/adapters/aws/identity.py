"""Who calls AWS here, and what the policies of a role allow, by IAM's own simulator, which changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracelake.adapters.aws.service import AwsService
from tracelake.errors import CredentialsUnavailable
from tracelake.settings import AwsSettings

ALLOWED: Final = "allowed"
SESSION: Final = ":assumed-role/"


class AwsIdentity:
    """Belongs to one event loop."""

    def __init__(self, settings: AwsSettings) -> None:
        """Opens nothing yet."""
        region = settings.region or "us-east-1"
        self._sts, self._iam, self._quotas = (
            AwsService(name, region, settings.endpoint, unavailable=CredentialsUnavailable)
            for name in ("sts", "iam", "service-quotas")
        )

    async def caller(self) -> tuple[str, str]:
        """The account, and the ARN of its user or role."""
        answer = await self._sts.call("get_caller_identity")
        return str(answer["Account"]), role_of(str(answer["Arn"]))

    async def refused(
        self, principal: str, actions: Sequence[str], resource: str, context: Mapping[str, str]
    ) -> list[str]:
        """Which of these actions on this resource the policies of a role or user do not allow."""
        keys = [
            {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for name, value in context.items()
        ]
        answer = await self._iam.call(
            "simulate_principal_policy",
            PolicySourceArn=principal,
            ActionNames=list(actions),
            ResourceArns=[resource],
            ContextEntries=keys,
        )
        results = answer["EvaluationResults"]
        allowed = {item["EvalActionName"].lower() for item in results if item["EvalDecision"] == ALLOWED}
        return [action for action in actions if action.lower() not in allowed]

    async def quota(self, service: str, name: str) -> float | None:
        """Of the account in this region, by the name that AWS shows; None: there is none of that name."""
        more: dict[str, Any] = {}
        while True:
            answer = await self._quotas.call("list_service_quotas", ServiceCode=service, **more)
            for item in answer["Quotas"]:
                if item["QuotaName"] == name:
                    return float(item["Value"])
            if not answer.get("NextToken"):
                return None
            more = {"NextToken": answer["NextToken"]}

    async def close(self) -> None:
        await self._quotas.close()
        await self._sts.close()
        await self._iam.close()


def role_of(arn: str) -> str:
    """Of a session: its role, without a path, which a session does not show. Other principals are themselves."""
    if SESSION not in arn:
        return arn
    head, _, name = arn.partition(SESSION)
    return f"{head.replace(':sts:', ':iam:')}:role/{name.partition('/')[0]}"
