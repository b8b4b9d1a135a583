"""Speaks Spark Connect to one Sail: a session per query, so that no query finds anything of another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tracelake.query.sail import plans
from tracelake.query.sail.plans import SailPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

USER: Final = "query"
OPTIONS: Final = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
"""As Spark's: without the first, Sail gives NULL where Spark fails."""
RECONNECT: Final = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),  # another server may have had the same address
]
"""A server that starts opens its port some tenths of a second later."""
AUTHORITY: Final = ("grpc.default_authority", "localhost")
"""Else it is the path of the socket, which Sail refuses."""
IN_ITS_THREAD: Final = ("SingleThreadedUnaryStream", 1)
"""A call is read in the thread that made it. Otherwise gRPC starts a thread for each."""
ENVELOPE_BYTES: Final = 1024 * 1024
"""What a message may have beside its rows."""
CALL_SECONDS: Final = 5.0
"""For calls that do not run a query."""


def load_grpc() -> Any:
    """Import gRPC. Its handlers of forks are off: they close files that a sandbox is started with."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    import grpc

    return grpc


class IncompleteError(Exception):
    """The rows ended without the mark that they are all.

    A query that makes Sail panic ends like one without more rows. Only a reattachable execution has such a mark.
    """


class ConnectClient:
    """The connection to one server; used from many threads."""

    def __init__(self, address: str, max_bytes: int) -> None:
        grpc = load_grpc()
        from pyspark.sql.connect.proto import SparkConnectServiceStub

        limit = ("grpc.max_receive_message_length", max_bytes + ENVELOPE_BYTES)
        self._channel = grpc.insecure_channel(address, options=[*RECONNECT, AUTHORITY, IN_ITS_THREAD, limit])
        stub: Any = SparkConnectServiceStub
        self.stub: Any = stub(self._channel)

    def wait_until_ready(self, seconds: float) -> bool:
        """Whether the server answers a call in this time after it listens, which may take as long."""
        grpc = load_grpc()
        with suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(seconds)
            return self.answers(seconds)
        return False

    def answers(self, seconds: float) -> bool:
        """Whether the server answers a call in this time."""
        grpc = load_grpc()
        with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
            session = ConnectSession(self)
            session.open(seconds)
            session.close()
            return True
        return False

    def close(self) -> None:
        self._channel.close()


class ConnectSession:
    """One query's session. `cancel` is called from another thread."""

    def __init__(self, client: ConnectClient) -> None:
        from pyspark.sql.connect.proto import UserContext

        self._stub = client.stub
        self._whose: dict[str, Any] = {"session_id": str(uuid4()), "user_context": UserContext(user_id=USER)}
        self._call: Any = None
        self._canceled = False

    def open(self, seconds: float = CALL_SECONDS) -> None:
        from pyspark.sql.connect import proto

        pairs = [proto.KeyValue(key=key, value=value) for key, value in OPTIONS.items()]
        operation = proto.ConfigRequest.Operation(set=proto.ConfigRequest.Set(pairs=pairs))
        self._stub.Config(proto.ConfigRequest(operation=operation, **self._whose), timeout=seconds)

    def rows(self, text: str, tables: Mapping[str, SailPlan], limit: int) -> Iterator[StructType | pa.Table]:
        """Yield the schema, then batches of rows, `limit` at most; raises if Sail gave up in between.

        `tables` are what the names in the text mean. They are sent with it, so nothing of them is in the session.
        """
        import pyarrow as pa
        from pyspark.sql.connect import proto
        from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

        kind = None
        for response in self._execute(proto.Plan(root=plans.limited(plans.sql(text, tables), limit))):
            kind = response.WhichOneof("response_type")
            if response.HasField("schema"):
                schema: Any = proto_schema_to_pyspark_data_type(response.schema)
                yield schema
            if kind == "arrow_batch":
                yield pa.ipc.open_stream(response.arrow_batch.data).read_all()
        if kind != "result_complete":
            raise IncompleteError

    def cancel(self) -> None:
        """End what runs in the session, here and in the server, which may have ended already."""
        self._canceled = True
        if self._call is not None:
            self._call.cancel()
        with suppress(ValueError):  # the channel was closed
            self._interrupt()

    def close(self) -> None:
        from pyspark.sql.connect import proto

        self._stub.ReleaseSession.future(proto.ReleaseSessionRequest(**self._whose), timeout=CALL_SECONDS)

    def _execute(self, plan: Any) -> Iterator[Any]:
        from pyspark.sql.connect import proto

        if self._canceled:
            return
        options = proto.ExecutePlanRequest.RequestOption(reattach_options=proto.ReattachOptions(reattachable=True))
        request = proto.ExecutePlanRequest(
            operation_id=str(uuid4()), plan=plan, request_options=[options], **self._whose
        )
        self._call = self._stub.ExecutePlan(request)
        yield from self._call

    def _interrupt(self) -> None:
        from pyspark.sql.connect import proto

        kind = proto.InterruptRequest.INTERRUPT_TYPE_ALL
        request: Mapping[str, Any] = {"interrupt_type": kind, **self._whose}
        self._stub.Interrupt.future(proto.InterruptRequest(**request), timeout=CALL_SECONDS)
