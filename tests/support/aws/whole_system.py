"""A whole Trace with every adapter of AWS: moto for most, SeaweedFS for S3 and STS, and the runner on Lambda.

Between Trace and moto is a line on which AWS fails as a test wants it to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import uuid4

import boto3

from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.aws.lambda_server import LambdaServer
from tests.support.loop_thread import LoopThread
from tests.support.systems.invokers import lambda_of_the_runner
from tests.support.systems.trace_up import TraceUp
from tracelake.lite.seaweedfs import ACCOUNT, SeaweedFS
from tracelake.settings import CredentialSettings

REGION = "us-east-1"
CHANGES = frozenset({"SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"})
"""Requests that are sent again if their answer is lost."""


@dataclass(frozen=True)
class Aws:
    moto: str
    name: str
    store: SeaweedFS
    functions: LambdaServer
    line: FaultyAws

    def fail_now_and_then(self) -> None:
        """From now on every fifth request is throttled or fails, and some answers to what was done are lost."""
        kinds = Refusal("ThrottlingException"), Refusal("InternalFailure", 500), Refusal("ServiceUnavailable", 503)
        asked, answered = count(), count()

        def refuses(_operation: str, _request: object) -> Refusal | None:
            number = next(asked)
            return kinds[number // 5 % len(kinds)] if number % 5 == 0 else None

        self.line.refuses = refuses
        self.line.cuts = lambda operation: operation in CHANGES and next(answered) % 7 == 0

    def variables(self) -> dict[str, str]:
        """The profile and the places of its servers. Keys of the store are secrets of Secrets Manager."""
        keys = self.store.objects_for("worker")
        minter = self.store.credentials(CredentialSettings())
        assert keys.secret_access_key is not None
        assert minter.secret_access_key is not None
        values = {"objects": keys.secret_access_key, "sts": minter.secret_access_key}
        text = json.dumps({name: value.get_secret_value() for name, value in values.items()})
        boto3.client("secretsmanager", region_name=REGION, endpoint_url=self.moto).create_secret(
            Name=f"{self.name}/store", SecretString=text
        )
        return {
            "TRACE_PROFILE": "aws",
            "TRACE_AWS__NAME": self.name,
            "TRACE_AWS__ACCOUNT": ACCOUNT,
            "TRACE_AWS__REGION": REGION,
            "TRACE_AWS__ENDPOINT": self.line.url,
            "TRACE_QUEUE__CREATE": "true",
            "TRACE_QUEUE__POLL_SECONDS": "1",  # moto answers a request that waits though its client is gone
            "TRACE_OBJECTS__ENDPOINT": self.store.endpoint,
            "TRACE_OBJECTS__BUCKET": self.store.places.bucket,
            "TRACE_OBJECTS__SCRATCH_BUCKET": self.store.places.scratch_bucket,
            "TRACE_OBJECTS__ACCESS_KEY_ID": str(keys.access_key_id),
            "TRACE_OBJECTS__SECRET_ACCESS_KEY": f"aws-secret:{self.name}/store#objects",
            "TRACE_CREDENTIALS__ENDPOINT": self.store.endpoint,
            "TRACE_CREDENTIALS__ROLE_ARN": str(minter.role_arn),
            "TRACE_CREDENTIALS__ACCESS_KEY_ID": str(minter.access_key_id),
            "TRACE_CREDENTIALS__SECRET_ACCESS_KEY": f"aws-secret:{self.name}/store#sts",
            "TRACE_UDF__LAMBDA_ENDPOINT": self.functions.url,
            "TRACE_UDF__LAMBDA_FUNCTION": "trace-runner",
            "TRACE_METRICS__CLOUDWATCH_SECONDS": "5",
        }

    def reach(self, system: TraceUp) -> None:
        """Configures the function with what the template gives it, once the listeners are known."""
        ready = system.ready()
        task = ready["endpoints"]["dispatcher_task"]
        self.functions.environment |= {
            "TRACE_ENDPOINTS__DISPATCHER_TASK": task,
            "TRACE_ENDPOINTS__QUERY_TASK": ready["endpoints"].get("query_task", task),
            "TRACE_TLS__CA": str(Path(ready["ca_file"])),
        }


@contextmanager
def on_aws(moto: str, store: SeaweedFS) -> Iterator[Aws]:
    thread, opened = LoopThread(), AsyncExitStack()
    try:
        functions = thread.do(opened.enter_async_context(lambda_of_the_runner()))
        line = thread.do(opened.enter_async_context(faulty_aws(moto)))
        yield Aws(moto, f"t{uuid4().hex[:8]}", store, functions, line)
    finally:
        thread.do(opened.aclose())
        thread.close()
