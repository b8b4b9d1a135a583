"""What a store makes of a session policy: whether an action would pass."""

from __future__ import annotations

import json

from tests.support.aws.iam import Request, effects
from tracelake.domain.access.session_policy import LIST


def allows(policy: str, action: str, bucket: str, key: str = "", *, prefix: str | None = None) -> bool:
    """Whether a store would let an action pass: some statement allows it and none denies it."""
    resource = f"arn:aws:s3:::{bucket}" + ("" if action == LIST else f"/{key}")
    request = Request(action, resource, context={} if prefix is None else {"s3:prefix": prefix})
    return effects(request, [json.loads(policy)]) == {"Allow"}
