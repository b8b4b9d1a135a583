"""What Trace needs from outside: each port is a Protocol, and its docstring is the contract.

`tests/contracts` has one suite per port and runs it on every adapter. Only `wiring` knows which adapter implements a
port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NewType, Protocol
from uuid import UUID

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.figure import Figure
from tracelake.errors import InvalidRequest

MessageId = NewType("MessageId", str)
Receipt = NewType("Receipt", str)

BODY_LIMIT_BYTES: Final = 256 * 1024
"""A body is smaller than this. What is larger belongs in the object store, and a pointer to it in the message."""

DELAY_LIMIT: Final = timedelta(minutes=15)
"""The longest delay that SQS takes. What waits longer belongs in the state database."""

VISIBILITY_LIMIT: Final = timedelta(hours=12)
"""The longest time that SQS hides a message."""

QueueGroup = tuple[str, str]
"""Whose message it is: an organisation, and within it a job."""

QUEUE_NAME: Final = r"[A-Za-z0-9_-]{1,64}"
"""What SQS allows, short enough to leave room for a prefix of the deployment."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. It cannot be made larger or later than every adapter can carry."""

    body: bytes
    delay: timedelta = timedelta()
    group: QueueGroup | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.body) < BODY_LIMIT_BYTES:
            raise InvalidRequest(
                f"a queue message has {len(self.body)} bytes; it needs one, and fewer than {BODY_LIMIT_BYTES}",
                where="/body",
                hint="put the content into the object store and send a pointer to it",
            )
        if not timedelta() <= self.delay <= DELAY_LIMIT:
            raise InvalidRequest(f"a queue message cannot be delayed by {self.delay}", where="/delay")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message: the same message may be delivered again, under another receipt."""

    queue: str
    id: MessageId
    receipt: Receipt
    body: bytes
    receives: int
    """How often the message was delivered, this time included."""
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up."""

    id: MessageId
    body: bytes
    receives: int
    sent_at: datetime
    died_at: datetime
    """Where the queue does not store that moment (SQS), the one of the first delivery."""
    reason: str


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How full a queue is. Approximate while it moves."""

    ready: int
    in_flight: int
    """Received, not acknowledged, and hidden from others."""
    delayed: int
    dead: int
    oldest_age_seconds: float
    """How long the longest waiting message has been ready; 0 when none is."""


class Queue(Protocol):
    """Wake-ups and pointers, passed from one process to another.

    The contract:

    - At least once. A published message is delivered until it is acknowledged, whichever process dies, the server
      included. It can be delivered twice: after its visibility ended, after a `publish` that was retried, or when the
      server crashed just after an acknowledgement. Receivers must be idempotent.
    - No order, and no deduplication. But groups take turns: a message whose organisation has few waiting does not wait
      for those of an organisation that has many; nor, within an organisation, for those of another job.
    - A delivered message is hidden from other receivers until its visibility ends; then it is ready again.
    - Every delivery has a new receipt, and only the newest one counts. A verb that takes receipts returns those that
      counted; for the others it does nothing. A receipt holds its message until the visibility ends. After that,
      `extend` and `release` no longer count, and an `ack` may count until the message is received again.
    - A message that was delivered as often as the adapter allows, each time without an `ack`, becomes a dead letter
      instead of being delivered again, with the reason. Giving it back counts as a delivery.
    - Queues need not be made: an unknown name is an empty queue.
    - Durations may be rounded up to whole seconds.

    How SQS (standard queues) keeps it: `publish` is SendMessageBatch in chunks of 10 and at most one request's bytes,
    with bodies that are not plain text in base64, and with the organisation as MessageGroupId (a fair queue; the jobs
    of an organisation do not take turns there); `receive` is ReceiveMessage with WaitTimeSeconds, asked again when
    more than 10 messages or 20 seconds are wanted, and of several queues without waiting in their order, then of all
    at once; `extend` and `release` are ChangeMessageVisibilityBatch;
    `ack` is DeleteMessageBatch. SQS accepts a late DeleteMessage, so the adapter remembers until when it holds
    each receipt and answers from that. Dead letters are the queue's RedrivePolicy: maxReceiveCount gives the reason,
    `dead_letters` receives from the dead-letter queue without deleting, `redrive` sends again and then deletes (the
    message gets a new id). `depth` is GetQueueAttributes of both queues and the metric
    ApproximateAgeOfOldestMessage, which is a minute old; a message released with a delay counts as in flight there.
    Queues are made by whoever sets up AWS, or by the adapter if it may; without either, an unknown name is
    QueueUnavailable. SQS deletes a message after 14 days.
    """

    async def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """Add messages, in one round trip. When it returns, they are durable; when it raises, each may be or not."""
        ...

    async def receive(
        self,
        queue: str | Mapping[str, int],
        *,
        max_messages: int,
        visibility: timedelta,
        wait: timedelta = timedelta(),
        end_wait: asyncio.Event | None = None,
    ) -> list[Delivery]:
        """Take what is ready, at most `max_messages`; if nothing is, wait for something, at most `wait`.

        With a mapping, of several queues in its order, of each at most as many as it says. Once `end_wait` is set, it
        waits no longer; what it has taken by then is returned, so that no delivery is spent on it.
        It returns as soon as there is anything, and need not fill the batch. Canceling it loses nothing: what it was
        about to return is delivered again, at the latest when its visibility ends.
        """
        ...

    async def extend(self, queue: str, receipts: Sequence[Receipt], visibility: timedelta) -> set[Receipt]:
        """Hide messages for `visibility` from now on, and return the receipts that are still held."""
        ...

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        """End messages for good, and return the receipts that did; the others' messages may be delivered again."""
        ...

    async def release(self, queue: str, receipts: Sequence[Receipt], delay: timedelta = timedelta()) -> set[Receipt]:
        """Give messages back, ready again after `delay`, and return the receipts that were held until now."""
        ...

    async def depth(self, queue: str) -> QueueDepth:
        """Count the queue."""
        ...

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """Look at dead letters, the oldest first, without changing them."""
        ...

    async def redrive(self, queue: str, ids: Sequence[MessageId] | None = None) -> int:
        """Put dead letters back, as if they had never been delivered, and return how many. None: all of them."""
        ...

    async def close(self) -> None:
        """Close connections and tasks. What was received and not acknowledged is delivered again, elsewhere."""
        ...


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a key that a signer holds."""

    kid: str
    """Its RFC 7638 thumbprint: it follows from the key, so no two keys share one."""
    jwk: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What becomes of a signer's keys, as the state database has decided for all replicas."""

    signing: str | None
    """The only key that signs; None before the first one."""
    retired: tuple[str, ...]
    """Keys whose last token has expired, or that were revoked: the private halves can be destroyed."""
    rotation_due: bool
    """No key that this signer holds is signing and young, or about to sign."""


class Signer(Protocol):
    """Signs capability tokens, and holds the private keys that do.

    The contract:

    - A token is a compact JWS by ES256 whose header holds `alg`, `kid` and `typ` and nothing else.
    - A signer does not decide when a key signs. It lists the keys it holds; the state database publishes them, lets
      each wait for the overlap, and makes one at a time the signing key. The signer follows. So every key is known to
      verifiers before its first token is, and replicas agree.
    - A key appears whole or not at all, whichever process is killed, and keys that were added in any other way (by a
      person) are found by the next `keys`.
    - A private half never leaves the signer.

    How KMS keeps it: `keys` are the enabled ECC_NIST_P256 keys with an alias of our prefix, GetPublicKey remembered;
    `sign` is one Sign call, its DER signature turned into r and s; `rotate` is CreateKey and CreateAlias, and two
    replicas at once may make two keys, which sign one after the other; `follow` schedules the deletion of retired keys.
    """

    @property
    def remote(self) -> bool:
        """Whether `sign` waits for a server: then callers sign several tokens at once."""
        ...

    async def keys(self) -> Sequence[PublicKey]:
        """Look for the keys that there are now."""
        ...

    async def follow(self, plan: KeyPlan) -> None:
        """Sign with the plan's key from now on, and destroy those that it retired."""
        ...

    async def rotate(self, *, known: Collection[str] | None = None) -> PublicKey:
        """Make a key, durably, and return it. It does not sign before a plan names it.

        With `known`, if there is a key besides these, return that one instead: replicas that all found a rotation due
        then make one key together.
        """
        ...

    async def sign(self, payload: bytes) -> str:
        """The token of this payload. Unavailable while there is no plan, or it names a key that is not held."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    name: ObjectName
    size: int


class ObjectStore(Protocol):
    """Files under `s3://bucket/key` names, wherever they are stored.

    The contract:

    - A `put` that returned is durable, and whole: no reader ever sees a part of an object. One that raised may have
      happened or not.
    - With `replace=False` it never touches an object that is there; it raises ObjectExists. Of two at once, one wins.
    - What was put is read back by the next `get`, `head` and `objects`, from any process.
    - Calls block: they are made from the threads of tasks and inside Spark's Python workers. A store can be pickled.
    - An object that is not there is NotFound; a store that does not answer is ObjectsUnavailable, and worth a retry.

    How S3 keeps it: `put` is PutObject (or a multipart upload), `replace=False` its If-None-Match; S3 is strongly
    consistent. How a disk keeps it: a temporary file, fsync, rename (or link), fsync of the folder.
    """

    def put(self, name: ObjectName, body: bytes | memoryview, *, replace: bool = False) -> None:
        """Write an object."""
        ...

    def get(self, name: ObjectName) -> bytes:
        """Read all of an object."""
        ...

    def chunks(self, name: ObjectName) -> Iterator[bytes]:
        """Read an object piece by piece, a few MiB at a time: never held whole."""
        ...

    def head(self, name: ObjectName) -> StoredObject | None:
        """Look at one without reading it; None if it is not there."""
        ...

    def objects(self, folder: Folder) -> Iterator[StoredObject]:
        """All objects below a folder, at any depth, in no order."""
        ...

    def delete(self, names: Sequence[ObjectName]) -> None:
        """Remove objects; those that are not there are removed already."""
        ...

    def signed_url(self, name: ObjectName, seconds: int) -> str | None:
        """A URL by which anyone may GET this one object for so long; None where the store has no such URLs."""
        ...

    def for_spark(self, name: ObjectName) -> str | None:
        """How Spark itself can open it (`file:///...`, `s3a://...`); None where only `get` can."""
        ...


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """Keys of a session that an object store opened for another process."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_at: datetime


class CredentialMinter(Protocol):
    """Opens sessions at the object store with the rights of a policy, and no others.

    The contract:

    - What a session may do is the policy's part of the role's rights; an empty policy is refused, since a store would
      take it for all of them.
    - A session ends by itself after `seconds` at the latest.
    - The store's audit shows each session under the name that it was given.
    - A store that does not answer, or refuses us, is CredentialsUnavailable; a policy that it finds too long is
      Forbidden.
    - None: the store has no keys. The mounts enforce the policy instead.

    How STS keeps it: AssumeRole with `Policy`, `RoleSessionName` and `DurationSeconds`, which is 900 at least. How the
    disk store keeps it: it answers None.
    """

    async def mint(self, policy: str, *, session: str, seconds: int) -> SessionKeys | None:
        """Open a session."""
        ...


@dataclass(frozen=True, slots=True)
class Invoked:
    """How an invocation ended: the function's own report to the task API is what counts, not this."""

    error: str | None = None
    """Why the function, or its host, failed; None: it returned."""
    started: bool = True
    """False: nothing has run (no free place, no host): it was no attempt."""
    busy: bool = False
    """Of what has not started: the host has no free place."""
    lost: bool = False
    """Of what may have run: the host was lost or failed itself, which is not the function's fault."""
    refused: bool = False
    """Of what has not started: it never will, however often it is tried (the payload is too large)."""


@dataclass(frozen=True, slots=True)
class Places:
    """How many functions can run at once: in all, and of one organisation."""

    total: int
    per_org: int


@dataclass(frozen=True, slots=True)
class RunnerFunction:
    """The runner as a function of Lambda, as it is configured there."""

    runtime: str
    memory_mb: int
    seconds: int
    """Lambda ends an invocation after so long."""
    at_once: int | str
    """How many invocations may run at the same time, by its own limit or the account's; or why that is not known."""


class Invoker(Protocol):
    """Runs a function once, with one payload, and returns when it has ended.

    The contract:

    - At most once for a call: no retries of its own. Whether it ran is only known from its own calls.
    - Code of two organisations never runs in one environment.
    - It returns when the function has returned, failed, was ended at its time limit, or never began.
    - Canceling the call ends the function where the host can do that; where it cannot, fences make what it does void.

    How Lambda keeps it: Invoke with InvocationType RequestResponse, which Lambda does not repeat, and the organisation
    as the tenant; throttled or not reached is not started. A call that is canceled cannot be ended. How the host of
    Lite keeps it: the same call over HTTP.
    """

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        """Run it, for the organisation whose task it is."""
        ...

    async def places(self) -> Places | None:
        """How many it can run at once now; None: unknown. Unavailable: it does not answer."""
        ...


class FigureStore(Protocol):
    """Keeps figures, each under the time at which it came; it may come twice, so readers take the maximum."""

    async def put(self, figures: Sequence[Figure]) -> None:
        """Store figures; when it raises, each may be stored or not."""
        ...
