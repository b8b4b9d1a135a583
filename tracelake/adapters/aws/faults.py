"""What went wrong in a call to AWS, in words: whether it passes by itself, and what a person can do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

THROTTLED: Final = frozenset(
    {"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"}
    | {"TooManyRequestsException", "RequestLimitExceeded", "SlowDown", "KmsThrottled", "OverLimit"}
)
EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
UNKNOWN_KEYS: Final = frozenset(
    {"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "InvalidSecurity"}
)
SKEWED: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"})
DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"})
OF_TIME: Final = re.compile(r"signature (expired|not yet current)", re.IGNORECASE)
ACTION: Final = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
OF_KMS: Final = "Access to KMS is not allowed"
"""What Secrets Manager says of a secret that a key of KMS encrypts which the caller may not use."""
NAMES: Final = ("QueueUrl", "QueueName", "KeyId", "SecretId", "FunctionName", "Bucket")
"""Parameters that name what a call is about."""
OTHER_PREFIXES: Final = {"service-quotas": "servicequotas"}
"""Of services whose rights begin with another name."""
OTHER_ACTIONS: Final = {"Invoke": "InvokeFunction"}
"""Of calls whose right has another name."""
FAULT: Final = 500
TOO_MANY: Final = 429


@dataclass(frozen=True)
class Fault:
    message: str
    hint: str
    code: str = ""
    passes: bool = True
    """Whether the same call may succeed a moment later."""
    expired: bool = False
    """Whether other credentials may be found now."""
    may_be_done: bool = True
    """Whether the service may have done what it was called for."""


def fault_of(wrong: Exception, service: str, operation: str, parameters: Mapping[str, Any]) -> Fault:
    """Raises what is not of AWS."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    if isinstance(wrong, ClientError):
        status = int(wrong.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return replace(refusal(wrong.response, status, service, operation, parameters), may_be_done=status >= FAULT)
    if isinstance(wrong, NoCredentialsError | PartialCredentialsError):
        hint = "give this process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return Fault(f"there are no credentials for {service}", hint, passes=False, expired=True, may_be_done=False)
    if isinstance(wrong, BotoCoreError | OSError):  # also a TimeoutError
        hint = "check the network, the endpoint and the region; the call is repeated"
        sent = not isinstance(wrong, EndpointConnectionError | ConnectTimeoutError)
        return Fault(f"{service} does not answer: {type(wrong).__name__}", hint, may_be_done=sent)
    raise wrong


def refusal(
    answer: Mapping[str, Any], status: int, service: str, operation: str, parameters: Mapping[str, Any]
) -> Fault:
    """Of an answer as botocore reads it."""
    code, text = str(answer["Error"].get("Code", "")), str(answer["Error"].get("Message", ""))
    if code in DENIED:
        return _denied(code, text, service, operation, parameters)
    if code in SKEWED or OF_TIME.search(text):
        hint = "set the clock of this machine, by NTP: AWS refuses calls that are more than 5 minutes early or late"
        return Fault(f"{service} finds our clock wrong: {text or code}", hint, code)
    if code in EXPIRED | UNKNOWN_KEYS:
        hint = "renew the credentials of this process; those in a file or of a role are read again by the next call"
        return Fault(f"{service} does not accept our credentials: {code}", hint, code, expired=True)
    if code in THROTTLED or status == TOO_MANY:
        hint, reason = "raise the quota of the account, or send less", str(answer.get("Reason", ""))
        return Fault(f"{service} is throttled: {reason or code}", hint, code)
    if status >= FAULT:
        return Fault(f"{service} has failed: {code or status}", "the call is repeated; see the health of AWS", code)
    return Fault(
        f"{service} refuses {operation}: {code}: {text}", "this is not expected: report it", code, passes=False
    )


def _denied(code: str, text: str, service: str, operation: str, parameters: Mapping[str, Any]) -> Fault:
    ours, found = iam_action(service, operation), ACTION.search(text)
    if OF_KMS in text:
        hint = "allow the action kms:Decrypt on the key of the secret in the policy of this process's role"
        return Fault(f"{service} does not allow kms:Decrypt", hint, code, passes=False)
    action = found.group(1) if found and found.group(1).lower() != ours.lower() else ours
    on = next((str(parameters[name]) for name in NAMES if name in parameters), "*")
    hint = f"allow the action {action} on {on.rpartition('/')[2]} in the policy of this process's role"
    return Fault(f"{service} does not allow {action}", hint, code, passes=False)


def iam_action(service: str, operation: str) -> str:
    """The right that a call needs; batches need that of the single call."""
    name = "".join(part.title() for part in operation.split("_"))
    return f"{OTHER_PREFIXES.get(service, service)}:{OTHER_ACTIONS.get(name, name.removesuffix('Batch'))}"
