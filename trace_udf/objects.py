"""Writes objects of the task: through the object endpoint of a sandbox, or to S3 with keys of a session."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from typing import Any, Dict, Mapping, Tuple
from urllib.parse import quote, urlsplit

from trace_udf.connections import Asked, call
from trace_udf.errors import Refused, refusal

EXISTS = 412
"""S3's status for If-None-Match when the object exists."""


def put_object(url: str, token: str, name: str, body: bytes) -> None:
    """`name` is `s3://bucket/key`. The same bytes again are accepted; other bytes under one name are refused."""
    path = "/" + quote(name[len("s3://") :], safe="/=+")
    status, answer = call(url, Asked("PUT", path, body, {"X-Trace-Task-Capability": token}))
    if status != 200:
        raise refusal(f"PUT {name}", status, answer)


def put_at_s3(keys: Mapping[str, Any], name: str, body: bytes) -> None:
    """The name is derived from the content, so an existing object is equal."""
    bucket, _, key = name[len("s3://") :].partition("/")
    base, path = _place(keys, bucket, key)
    more = {"if-none-match": "*", "content-type": "application/octet-stream"}
    headers = signed(keys, base, Asked("PUT", path, body, more))
    status, answer = call(base, Asked("PUT", path, body, headers))
    if status not in (200, EXISTS):
        message = answer[:500].decode("utf-8", "replace")
        error = {"code": "objects", "message": message or "the object store refused", "retryable": status >= 500}
        raise Refused(f"PUT {name}", status, error)


def signed(keys: Mapping[str, Any], base: str, request: Asked) -> Dict[str, str]:
    """The headers of a request, with AWS' signature version 4."""
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": urlsplit(base).netloc,
        "x-amz-date": now,
        "x-amz-content-sha256": hashlib.sha256(request.body).hexdigest(),
        "x-amz-security-token": str(keys["session_token"]),
        **request.headers,
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    asked = f"{request.method}\n{request.path}\n\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{now[:8]}/{keys['region']}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    signature = hmac.new(_key(keys, now[:8]), text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys['access_key_id']}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _key(keys: Mapping[str, Any], day: str) -> bytes:
    made = f"AWS4{keys['secret_access_key']}".encode()
    for part in (day, str(keys["region"]), "s3", "aws4_request"):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    return made


def _place(keys: Mapping[str, Any], bucket: str, key: str) -> Tuple[str, str]:
    written = quote(key, safe="/-_.~")
    if keys.get("endpoint"):
        return str(keys["endpoint"]).rstrip("/"), f"/{bucket}/{written}"
    return f"https://{bucket}.s3.{keys['region']}.amazonaws.com", f"/{written}"
