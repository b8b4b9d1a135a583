"""A task's calls to the Dispatcher, from the thread in which its operator runs. Outages are waited out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range
from tracelake.errors import InvalidRequest, LeaseLost, Unavailable
from tracelake.runtime.retry import retry_with_backoff
from tracelake.wire.client import TaskClient
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import Claimed, TaskProgress
from tracelake.wire.task.outputs import EventBody, EventsRequest, FilesAnswer, FilesRequest, InvalidationBody

T = TypeVar("T")


class WorkerTaskApi:
    """Made in the event loop, used from the operator's thread. `token` is kept fresh by the lease keeper."""

    def __init__(self, claimed: Claimed, tasks: TaskClient) -> None:
        self.token = claimed.capability_token
        self.lost = threading.Event()
        self.stop_requested = threading.Event()
        self.progress: TaskProgress | None = None
        self.progressed = asyncio.Event()
        self._claimed = claimed
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    def files(self, dataset: UUID, span: Range | None) -> FilesAnswer:
        start, end = span.edges if span else (None, None)
        request = FilesRequest(**self._fence, dataset_uuid=dataset, start=start, end=end)
        return self._ask(lambda: self._tasks.files(self.token, request))

    def send_events(
        self, events: Sequence[EventBody], invalidations: Sequence[InvalidationBody], state: Mapping[str, Any] | None
    ) -> None:
        request = EventsRequest(**self._fence, events=list(events), invalidations=list(invalidations), state=state)
        self._ask(lambda: self._tasks.events(self.token, request))

    def buffer_folder(self, dataset: UUID) -> Folder:
        """Where this attempt writes batches, by its token."""
        end = (str(dataset), str(self._claimed.task.task_id), str(self._claimed.attempt))
        written = decode(parse_token(self.token).payload).grants.storage.write
        for folder in written:
            if folder.segments[-3:] == end:
                return folder
        raise InvalidRequest("the token lets this task write no batches of that dataset", where="/outputs")

    def publish(self, dataset: UUID, batch_uri: str, content_type: str, rows: int, size: int) -> None:
        request = BufferPublishRequest(
            **self._fence,
            dataset_uuid=dataset,
            batch_uri=batch_uri,
            content_type=content_type,
            record_count=rows,
            batch_size_bytes=size,
        )
        self._ask(lambda: self._tasks.publish_buffer(self.token, request))

    def report(self, progress: Mapping[str, Any]) -> None:
        # Empty fields are left out.
        self.progress = TaskProgress(**{name: value for name, value in progress.items() if value not in (None, "")})
        self._loop.call_soon_threadsafe(self.progressed.set)

    @property
    def _fence(self) -> dict[str, Any]:
        claimed = self._claimed
        return {"task_id": claimed.task.task_id, "attempt": claimed.attempt, "lease_token": claimed.lease_token}

    def _ask(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Retries until the Dispatcher answers, or the lease is lost."""
        if not self.lost.is_set():
            retried = retry_with_backoff(call, is_over=self.lost.is_set)
            with suppress(Unavailable):  # only when the lease is lost
                return asyncio.run_coroutine_threadsafe(retried, self._loop).result()
        raise LeaseLost("the lease was lost", where="/lease_token")
