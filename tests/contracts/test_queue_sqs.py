"""What only the queue of SQS has: requests within its limits, outages of AWS, and queues that someone else makes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from tests.support import ROOT
from tests.support.aws.faulty_aws import FaultyAws, Refusal, faulty_aws
from tests.support.queues import HOUR, closing, drain, look, outgoing, receive_message, release_message, sqs_settings
from tracelake.adapters.sqs.queue import SqsQueue
from tracelake.errors import QueueUnavailable
from tracelake.ports import BODY_LIMIT_BYTES, Outgoing

pytestmark = pytest.mark.anyio

SHORTLY = timedelta(seconds=1)
SKEW = "Signature expired: 20261118T100000Z is now earlier than 20261118T101500Z"
PASSING = {
    "throttled": (Refusal("ThrottlingException"), "quota"),
    "internal": (Refusal("InternalFailure", 500), "health"),
    "away": (Refusal("ServiceUnavailable", 503), "health"),
    "skewed": (Refusal("InvalidSignatureException", 403, SKEW), "clock"),
    "expired": (Refusal("ExpiredTokenException", 400), "renew the credentials"),
}


@pytest.fixture
async def aws(moto: str) -> AsyncIterator[FaultyAws]:
    async with faulty_aws(moto) as faulty:
        yield faulty


@pytest.fixture
async def queue(aws: FaultyAws) -> AsyncIterator[SqsQueue]:
    settings = sqs_settings(aws.url).model_copy(update={"cloudwatch_endpoint": aws.moto})
    opened = SqsQueue(settings, max_receives=100, retry_for=timedelta(seconds=60))
    async with closing(opened):
        yield opened


@pytest.mark.parametrize("kind", PASSING)
async def test_a_call_that_aws_refuses_for_a_moment_is_repeated(aws: FaultyAws, queue: SqsQueue, kind: str) -> None:
    aws.refuse("SendMessageBatch", PASSING[kind][0], times=2)
    await queue.publish("q", outgoing(b"arrives"))
    assert len(aws.requests("SendMessageBatch")) == 3
    assert [delivery.body for delivery in await look(queue)] == [b"arrives"]


@pytest.mark.parametrize("kind", PASSING)
async def test_a_call_that_aws_keeps_refusing_ends_with_what_to_do(aws: FaultyAws, kind: str) -> None:
    refusal, said = PASSING[kind]
    async with closing(SqsQueue(sqs_settings(aws.url), retry_for=SHORTLY)) as queue:
        await look(queue)
        aws.refuse("SendMessageBatch", refusal)
        with pytest.raises(QueueUnavailable) as refused:
            await queue.publish("q", outgoing(b"never"))
        assert refused.value.retryable
        assert said in str(refused.value.hint)
        assert (await queue.depth("q")).ready == 0


async def test_an_answer_that_is_lost_loses_no_message(aws: FaultyAws, queue: SqsQueue) -> None:
    await look(queue)
    lost = {"SendMessageBatch", "DeleteMessageBatch"}

    def cut_once(operation: str) -> bool:
        known = len(lost)
        lost.discard(operation)
        return len(lost) < known

    aws.cuts = cut_once
    await queue.publish("q", outgoing(b"at least once"))
    for delivery in await look(queue):
        assert delivery.body == b"at least once"
        assert await queue.ack("q", [delivery.receipt]) == {delivery.receipt}
    assert lost == set()
    assert (await queue.depth("q")).ready == (await queue.depth("q")).in_flight == 0


async def test_nobody_there_is_an_error_that_says_so(moto: str) -> None:
    async with faulty_aws(moto) as gone:
        settings = sqs_settings(gone.url)
    async with closing(SqsQueue(settings, retry_for=SHORTLY)) as nowhere:
        with pytest.raises(QueueUnavailable, match="does not answer") as refused:
            await nowhere.publish("q", outgoing(b"x"))
    assert str(settings.endpoint) in str(refused.value.where)


@pytest.mark.parametrize(
    ("operation", "said", "action"),
    [
        ("SendMessageBatch", "User: x is not authorized to perform: sqs:sendmessage on resource: y", "sqs:SendMessage"),
        ("SendMessageBatch", "User: x is not authorized to perform: kms:GenerateDataKey on z", "kms:GenerateDataKey"),
        ("GetQueueUrl", "Access to the resource is denied.", "sqs:GetQueueUrl"),
        ("CreateQueue", "", "sqs:CreateQueue"),
    ],
)
async def test_the_right_that_is_missing_is_named(
    aws: FaultyAws, queue: SqsQueue, operation: str, said: str, action: str
) -> None:
    aws.refuse(operation, Refusal("AccessDeniedException", 403, said))
    with pytest.raises(QueueUnavailable) as refused:
        await queue.publish("q", outgoing(b"x"))
    assert f"allow the action {action} on " in str(refused.value.hint)
    assert len(aws.requests(operation)) == 1, "the same call would be refused again"


async def test_credentials_that_expired_are_looked_for_again(
    aws: FaultyAws, queue: SqsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    keys = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\n"
    file.write_text(keys.format("FORMER"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def refuses(_operation: str, request: web.Request) -> Refusal | None:
        if "Credential=FORMER/" not in request.headers["Authorization"]:
            return None
        file.write_text(keys.format("NEXT"))
        return Refusal("ExpiredToken", 403)

    aws.refuses = refuses
    await queue.publish("q", outgoing(b"x"))
    assert len(await look(queue)) == 1


async def test_without_credentials_it_says_how_to_give_some(
    aws: FaultyAws, queue: SqsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(QueueUnavailable, match="no credentials") as refused:
        await queue.publish("q", outgoing(b"x"))
    assert "role" in str(refused.value.hint)
    assert aws.asked == []


async def test_a_queue_that_is_missing_is_named_unless_it_may_be_created(aws: FaultyAws) -> None:
    settings = sqs_settings(aws.url, create=False)
    async with closing(SqsQueue(settings)) as queue:
        for call in (queue.publish("q", outgoing(b"x")), look(queue), queue.depth("q"), queue.dead_letters("q", 1)):
            with pytest.raises(QueueUnavailable, match=f"{settings.prefix}q") as refused:
                await call
            assert f"{settings.prefix}q-dead" in str(refused.value.hint)
            assert refused.value.retryable
        async with closing(SqsQueue(settings.model_copy(update={"create": True}))) as maker:
            await maker.publish("q", outgoing(b"x"))
        assert len(await look(queue)) == 1, "it is found as soon as it is there"


async def test_a_queue_without_dead_letters_is_refused(aws: FaultyAws, queue: SqsQueue) -> None:
    settings = sqs_settings(aws.url, create=False)
    await queue._sqs.call("create_queue", QueueName=f"{settings.prefix}q")
    async with closing(SqsQueue(settings)) as careless:
        with pytest.raises(QueueUnavailable, match="no dead-letter queue") as refused:
            await careless.publish("q", outgoing(b"x"))
    assert "RedrivePolicy" in str(refused.value.hint)


async def test_a_queue_deleted_meanwhile_is_created_again(queue: SqsQueue) -> None:
    await queue.publish("q", outgoing(b"lost with it"))
    await queue._sqs.call("delete_queue", QueueUrl=(await queue._requests.names.find("q")).url)
    await queue.publish("q", outgoing(b"after"))
    assert [delivery.body for delivery in await look(queue)] == [b"after"]


async def test_a_queue_deleted_meanwhile_is_an_error_where_others_create_them(queue: SqsQueue) -> None:
    settings = queue._requests.names._settings.model_copy(update={"create": False})
    await queue.publish("q", outgoing(b"x"))
    async with closing(SqsQueue(settings)) as other:
        assert (await other.depth("q")).ready == 1
        await queue._sqs.call("delete_queue", QueueUrl=(await queue._requests.names.find("q")).url)
        with pytest.raises(QueueUnavailable, match="there is no SQS queue"):
            await other.receive("q", max_messages=1, visibility=HOUR)


async def test_a_queue_deleted_a_moment_ago_says_when_it_can_be_created(aws: FaultyAws, queue: SqsQueue) -> None:
    aws.refuse("CreateQueue", Refusal("QueueDeletedRecently"))
    with pytest.raises(QueueUnavailable) as refused:
        await queue.publish("q", outgoing(b"x"))
    assert "60 seconds" in str(refused.value.hint)


async def test_requests_hold_ten_messages_and_one_mebibyte_at_most(aws: FaultyAws, queue: SqsQueue) -> None:
    bodies = [b"\0" * (BODY_LIMIT_BYTES - 1)] * 4 + [b"%d" % number for number in range(25)]
    await queue.publish("q", outgoing(*bodies))
    requests = [request["Entries"] for request in aws.requests("SendMessageBatch")]
    assert all(len(entries) <= 10 for entries in requests)
    assert all(sum(len(entry["MessageBody"]) for entry in entries) <= 2**20 for entries in requests)
    assert sorted(delivery.body for delivery in await drain(queue, len(bodies))) == sorted(bodies)


async def test_plain_text_is_sent_as_it_is_and_an_organisation_is_a_group(aws: FaultyAws, queue: SqsQueue) -> None:
    await queue.publish("q", [Outgoing(b'{"task_id": 1}', group=("acme", "job")), Outgoing(b"x", group=("ü", "job"))])
    first, second = aws.requests("SendMessageBatch")[0]["Entries"]
    assert (first["MessageBody"], first["MessageGroupId"]) == ('{"task_id": 1}', "acme")
    assert second["MessageGroupId"].isalnum()


async def test_entries_that_sqs_fails_to_handle_are_sent_again(aws: FaultyAws, queue: SqsQueue) -> None:
    """SQS may have accepted them nevertheless, as moto has: the second time they are duplicates."""
    failed: list[str] = []

    def fails_one(operation: str, answer: dict[str, object]) -> dict[str, object] | None:
        if operation != "SendMessageBatch" or failed:
            return None
        failed.append("1")
        return answer | {"Failed": [{"Id": "1", "Code": "InternalError", "SenderFault": False}]}

    aws.changes = fails_one
    await queue.publish("q", outgoing(b"0", b"1", b"2"))
    first, again = aws.requests("SendMessageBatch")
    assert [entry["MessageBody"] for entry in again["Entries"]] == ["1"]
    assert len(first["Entries"]) == 3


async def test_of_a_message_delivered_by_the_dozen_only_the_newest_receipt_counts(queue: SqsQueue) -> None:
    await queue.publish("q", outgoing(b"again and again"))
    url, receipts = (await queue._requests.names.find("q")).url, []
    for _ in range(12):
        receipts.append((await receive_message(queue)).receipt)
        await queue._sqs.call(  # SQS may deliver early by itself
            "change_message_visibility", QueueUrl=url, ReceiptHandle=receipts[-1], VisibilityTimeout=0
        )
    newest = await receive_message(queue)
    assert await queue.extend("q", receipts, HOUR) == set()
    assert await queue.ack("q", receipts) == set()
    assert await queue.ack("q", [*receipts, newest.receipt]) == {newest.receipt}
    assert (await queue.depth("q")).in_flight == 0


async def test_a_redrive_ends_though_messages_die_again_meanwhile(aws: FaultyAws) -> None:
    async with closing(SqsQueue(sqs_settings(aws.url), max_receives=1)) as queue:
        await queue.publish("q", outgoing(b"1", b"2", b"3"))
        for _ in range(3):
            await release_message(queue)
        assert await look(queue) == []

        async def never_succeed() -> None:
            while True:
                found = await queue.receive("q", max_messages=10, visibility=HOUR, wait=HOUR)
                await queue.release("q", [delivery.receipt for delivery in found])

        failing = asyncio.create_task(never_succeed())
        assert await queue.redrive("q") == 3
        failing.cancel()
        await asyncio.gather(failing, return_exceptions=True)


async def test_the_age_of_the_oldest_message_is_that_of_cloudwatch(queue: SqsQueue) -> None:
    await queue.publish("q", outgoing(b"waits"))
    name = (await queue._requests.names.find("q")).name
    values = [(datetime.now(UTC) - timedelta(minutes=minutes), value) for minutes, value in ((3, 7.0), (1, 95.0))]
    for moment, value in values:
        metric = {"MetricName": "ApproximateAgeOfOldestMessage", "Timestamp": moment, "Value": value}
        dimensions = [{"Name": "QueueName", "Value": name}]
        await queue._cloudwatch.call(
            "put_metric_data", Namespace="AWS/SQS", MetricData=[metric | {"Dimensions": dimensions}]
        )
    assert (await queue.depth("q")).oldest_age_seconds == 95.0
    await receive_message(queue)
    assert (await queue.depth("q")).oldest_age_seconds == 0, "none is ready"


def test_nothing_of_aws_is_imported_in_lite() -> None:
    code = """
import asyncio, sys
from tracelake.settings import settings_from_document
from tracelake.wiring import make_objects, open_figures, open_queue, open_signer
settings = settings_from_document('{"home": "/nowhere", "queue": {"dsn": "postgresql://nobody@127.0.0.1:1/q"}}')
async def main():
    async with open_queue(settings), open_signer(settings), open_figures(settings):
        make_objects(settings)
asyncio.run(main())
WORDS = "boto", "adapters.sqs", "_kms", "adapters.aws", "_lambda", "cloudwatch", "adapters.secrets"
found = [name for name in sys.modules if any(word in name for word in WORDS)]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
