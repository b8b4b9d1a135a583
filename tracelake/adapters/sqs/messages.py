"""Messages as SQS carries them: text, in requests of ten messages and one MiB at most."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, Final

from tracelake.adapters.sqs.names import LARGEST_BYTES
from tracelake.ports import MessageId, Outgoing, Receipt

BATCH: Final = 10
PLAIN: Final = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
"""What SQS carries as it is. Anything else would be refused or changed."""
GROUP_ID: Final = re.compile(r"[!-~]{1,128}")
ENCODING: Final = "encoding"
BASE64: Final = "base64"
REDRIVE: Final = "redrive"
"""Names the call of `redrive` that sent a message again."""
ATTRIBUTES_BYTES: Final = 256
"""At most what our attributes add to a body."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """A message as ReceiveMessage returned it."""

    id: MessageId
    receipt: Receipt
    body: bytes
    receives: int
    sent_at: datetime
    first_received_at: datetime
    raw: Mapping[str, Any]

    @property
    def redriven_by(self) -> str | None:
        return _attribute(self.raw, REDRIVE)


def entry_of(message: Outgoing) -> Entry:
    """What SendMessageBatch takes, without its Id."""
    text, encoding = _as_text(message.body)
    entry: Entry = {"MessageBody": text}
    if seconds := whole_seconds(message.delay):
        entry["DelaySeconds"] = seconds
    if encoding:
        entry["MessageAttributes"] = {ENCODING: _string(encoding)}
    if message.group:
        entry["MessageGroupId"] = _group_id(message.group[0])
    return entry


def entry_again(message: Received, redrive: str) -> Entry:
    """The same message, to be sent anew."""
    entry: Entry = {"MessageBody": message.raw["Body"], "MessageAttributes": {REDRIVE: _string(redrive)}}
    if encoding := _attribute(message.raw, ENCODING):
        entry["MessageAttributes"][ENCODING] = _string(encoding)
    if group := message.raw["Attributes"].get("MessageGroupId"):
        entry["MessageGroupId"] = group
    return entry


def received(raw: Mapping[str, Any]) -> Received:
    attributes, body = raw["Attributes"], str(raw["Body"])
    coded = _attribute(raw, ENCODING) == BASE64
    return Received(
        id=MessageId(raw["MessageId"]),
        receipt=Receipt(raw["ReceiptHandle"]),
        body=base64.b64decode(body) if coded else body.encode(),
        receives=int(attributes["ApproximateReceiveCount"]),
        sent_at=_moment(attributes["SentTimestamp"]),
        first_received_at=_moment(attributes["ApproximateFirstReceiveTimestamp"]),
        raw=raw,
    )


def requests_of(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries of one request each, with an Id in it."""
    request: list[Entry] = []
    size = 0
    for entry in entries:
        needs = len(entry.get("MessageBody", "").encode()) + ATTRIBUTES_BYTES
        if request and (len(request) == BATCH or size + needs > LARGEST_BYTES):
            yield request
            request, size = [], 0
        request.append(entry | {"Id": str(len(request))})
        size += needs
    if request:
        yield request


def whole_seconds(duration: timedelta) -> int:
    return ceil(duration.total_seconds())


def _as_text(body: bytes) -> tuple[str, str | None]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if PLAIN.fullmatch(text):
        return text, None
    return base64.b64encode(body).decode(), BASE64


def _group_id(org: str) -> str:
    return org if GROUP_ID.fullmatch(org) else hashlib.sha256(org.encode()).hexdigest()


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _attribute(raw: Mapping[str, Any], name: str) -> str | None:
    found = raw.get("MessageAttributes", {}).get(name)
    return None if found is None else str(found["StringValue"])


def _moment(milliseconds: str) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
