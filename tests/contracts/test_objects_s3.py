"""What only the store on S3 has: refusals of S3, each with what to do, and uploads that break off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from uuid import uuid4

import boto3
import pytest

from tests.support.aws.faulty_aws import Refusal
from tests.support.aws.faulty_s3 import FaultyS3, faulty_s3
from tests.support.loop_thread import LoopThread
from tracelake.adapters.objects_s3 import S3Objects
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import ObjectsUnavailable

LARGE = bytes(range(256)) * (64 * 1024)
"""16 MB: more than one part."""
SLOW = Refusal("SlowDown", 503, "Please reduce your request rate.")
LASTING = {
    "denied": (Refusal("AccessDenied", 403, "Access Denied"), "s3:PutObject"),
    "expired": (Refusal("ExpiredToken", 400, "The provided token has expired."), "renew the credentials"),
    "skewed": (Refusal("RequestTimeTooSkewed", 403, "The difference is too large."), "clock"),
    "slow": (SLOW, "quota"),
    "internal": (Refusal("InternalError", 500, "We encountered an internal error."), "health"),
}


@pytest.fixture
def s3(moto: str) -> Iterator[FaultyS3]:
    thread, opened = LoopThread(), AsyncExitStack()
    try:
        yield thread.do(opened.enter_async_context(faulty_s3(moto)))
    finally:
        thread.do(opened.aclose())
        thread.close()


@pytest.fixture
def name(moto: str) -> ObjectName:
    bucket = f"b{uuid4().hex[:8]}"
    boto3.client("s3", region_name="us-east-1", endpoint_url=moto).create_bucket(Bucket=bucket)
    return ObjectName.parse(f"s3://{bucket}/datasets/a")


@pytest.fixture
def store(s3: FaultyS3) -> S3Objects:
    return S3Objects("us-east-1", s3.url, "key", "secret")


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["whole", "in parts"])
def test_a_server_that_asks_to_slow_down_is_asked_again(
    s3: FaultyS3, store: S3Objects, name: ObjectName, body: bytes
) -> None:
    s3.refuse("PUT", SLOW, times=2)
    store.put(name, body, replace=True)
    s3.refuse("GET", SLOW, times=2)
    assert store.get(name) == body


@pytest.mark.parametrize("kind", LASTING)
def test_a_refusal_that_lasts_says_what_to_do_and_leaves_nothing(
    s3: FaultyS3, store: S3Objects, name: ObjectName, kind: str
) -> None:
    refusal, said = LASTING[kind]
    s3.refuse("PUT", refusal)
    with pytest.raises(ObjectsUnavailable) as refused:
        store.put(name, b"x")
    assert said in str(refused.value.hint)
    assert refused.value.retryable
    assert store.head(name) is None


def test_an_upload_that_breaks_off_between_parts_leaves_no_object_and_can_be_repeated(
    s3: FaultyS3, store: S3Objects, name: ObjectName
) -> None:
    s3.refuse("partNumber=2", Refusal("AccessDenied", 403))
    with pytest.raises(ObjectsUnavailable):
        store.put(name, LARGE, replace=True)
    assert any("partNumber=1" in asked for asked in s3.asked)
    assert store.head(name) is None
    s3.refuse("never", SLOW)
    store.put(name, LARGE, replace=True)
    assert store.get(name) == LARGE


def test_an_upload_in_parts_that_breaks_off_leaves_the_former_object_as_it_was(
    s3: FaultyS3, store: S3Objects, name: ObjectName
) -> None:
    store.put(name, b"former")
    s3.refuse("partNumber=2", Refusal("AccessDenied", 403))
    with pytest.raises(ObjectsUnavailable):
        store.put(name, LARGE, replace=True)
    assert store.get(name) == b"former"
