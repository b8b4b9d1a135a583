"""A client of boto3 whose requests IAM's rules decide first; what they allow goes to a real S3 server."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from tests.support.aws.iam import Request

Judge = Callable[[Request], bool]

OF_BUCKETS = {
    ("GET", "uploads"): "s3:ListBucketMultipartUploads",
    ("GET", "versions"): "s3:ListBucketVersions",
    ("GET", "policy"): "s3:GetBucketPolicy",
    ("PUT", "policy"): "s3:PutBucketPolicy",
    ("GET", ""): "s3:ListBucket",
    ("HEAD", ""): "s3:ListBucket",
    ("PUT", ""): "s3:CreateBucket",
    ("DELETE", ""): "s3:DeleteBucket",
}
OF_OBJECTS = {
    ("GET", "acl"): "s3:GetObjectAcl",
    ("PUT", "acl"): "s3:PutObjectAcl",
    ("GET", "uploadId"): "s3:ListMultipartUploadParts",
    ("DELETE", "uploadId"): "s3:AbortMultipartUpload",
    ("GET", ""): "s3:GetObject",
    ("HEAD", ""): "s3:GetObject",
    ("PUT", ""): "s3:PutObject",
    ("POST", ""): "s3:PutObject",
    ("DELETE", ""): "s3:DeleteObject",
}


def judge_requests(client: Any, judge: Judge, principal: str) -> Any:
    """The same client, which now gets 403 where `judge` says no."""

    def before_send(request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        needed = list(_needed(request, principal))
        return None if all(judge(item) for item in needed) else _denied(request)

    client.meta.events.register("before-send.s3", before_send)
    return client


def _needed(request: AWSPreparedRequest, principal: str) -> Iterator[Request]:
    """The actions of a call, as the service authorization reference of S3 lists them."""
    url = urlsplit(request.url)
    query = parse_qs(url.query, keep_blank_values=True)
    bucket, _, key = unquote(url.path).lstrip("/").partition("/")
    secure = {"aws:SecureTransport": "true"}
    if not key and "delete" in query:
        for element in ET.fromstring(request.body).iter("{*}Key"):  # noqa: S314 - written by boto3
            yield Request("s3:DeleteObject", f"arn:aws:s3:::{bucket}/{element.text}", principal, secure)
        return
    actions = OF_OBJECTS if key else OF_BUCKETS
    kind = next((name for method, name in actions if name in query and method == request.method), "")
    context = secure if key or "prefix" not in query else {**secure, "s3:prefix": query["prefix"][0]}
    for name in _readings(key):
        resource = f"arn:aws:s3:::{bucket}" + (f"/{name}" if name else "")
        yield Request(actions[request.method, kind], resource, principal, context)
    copied = request.headers.get("x-amz-copy-source")
    if copied:
        source = unquote(copied.decode() if isinstance(copied, bytes) else copied)
        yield Request("s3:GetObject", f"arn:aws:s3:::{source.lstrip('/')}", principal, secure)


def _readings(key: str) -> set[str]:
    """To AWS a key with dots is a name like any other; other stores read it as a path. Both must be allowed."""
    return {key, posixpath.normpath(key)} if "/../" in key else {key}


class _Body(io.BytesIO):
    """As much of urllib3's response as botocore reads."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        while part := self.read():
            yield part


def _denied(request: AWSPreparedRequest) -> AWSResponse:
    body = _Body(b"<Error><Code>AccessDenied</Code><Message>by the evaluator</Message></Error>")
    return AWSResponse(request.url, 403, {"content-type": "application/xml"}, body)
