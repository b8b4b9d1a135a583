"""A server of Spark Connect that answers what a test wants, in place of an engine that breaks the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tracelake.errors import ResultTooLarge
from tracelake.query.engine import CannotRun
from tracelake.query.sail.connect import load_grpc

SERVICE = "/spark.connect.SparkConnectService/"


class FalseConnect:
    """`answers` gives the messages, as bytes, of every query; other calls succeed, when it ends if `waits` is set."""

    def __init__(self) -> None:
        self.waits = False
        self.answers: Callable[[], Iterable[bytes]] = tuple
        self.over = threading.Event()
        """Set when the server ends: for answers that wait."""

    def service(self, call: Any) -> Any:
        grpc = load_grpc()
        if call.method == f"{SERVICE}ExecutePlan":
            return grpc.unary_stream_rpc_method_handler(self._execute)
        return grpc.unary_unary_rpc_method_handler(self._succeed)

    def _succeed(self, *_: Any) -> bytes:
        if self.waits:
            self.over.wait(60)
        return b""

    def _execute(self, request: bytes, _: Any) -> Iterator[bytes]:
        from pyspark.sql.connect import proto

        plan = proto.ExecutePlanRequest.FromString(request).plan
        yield from [complete()] if plan.HasField("command") else self.answers()


@contextmanager
def false_connect(folder: Path) -> Iterator[tuple[FalseConnect, str]]:
    """Yield the server and its address."""
    grpc = load_grpc()
    false, address = FalseConnect(), f"unix:{folder}/false"
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handler(false)])
    server.add_insecure_port(address)
    server.start()
    try:
        yield false, address
    finally:
        false.over.set()
        server.stop(None).wait()


class _Handler:
    def __init__(self, false: FalseConnect) -> None:
        self._false = false

    def service(self, call: Any) -> Any:
        return self._false.service(call)


def complete() -> bytes:
    from pyspark.sql.connect import proto

    done = proto.ExecutePlanResponse.ResultComplete()
    return bytes(proto.ExecutePlanResponse(result_complete=done).SerializeToString())


def schema_of_longs(*names: str) -> bytes:
    from pyspark.sql.connect import proto

    fields = [
        proto.DataType.StructField(name=name, data_type=proto.DataType(long=proto.DataType.Long())) for name in names
    ]
    schema = proto.DataType(struct=proto.DataType.Struct(fields=fields))
    return bytes(proto.ExecutePlanResponse(schema=schema).SerializeToString())


def batch(data: bytes, rows: int = 1) -> bytes:
    from pyspark.sql.connect import proto

    rows_of = proto.ExecutePlanResponse.ArrowBatch(data=data, row_count=rows)
    return bytes(proto.ExecutePlanResponse(arrow_batch=rows_of).SerializeToString())


def arrow(**columns: list[object]) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def endless(data: bytes) -> Iterator[bytes]:
    yield schema_of_longs("n")
    while True:
        yield batch(data)


WRONG_ANSWERS: Final[dict[str, tuple[Callable[[], Iterable[bytes]], type[Exception]]]] = {
    "no message": (lambda: [b"\xff\xff\xff\xff"], CannotRun),
    "rows that are no Arrow": (lambda: [schema_of_longs("n"), batch(b"not arrow"), complete()], CannotRun),
    "cut Arrow": (lambda: [schema_of_longs("n"), batch(arrow(n=[1, 2])[:-40]), complete()], CannotRun),
    "no end": (lambda: [schema_of_longs("n"), batch(arrow(n=[1]))], CannotRun),
    "more after the end": (lambda: [schema_of_longs("n"), complete(), batch(arrow(n=[1]))], CannotRun),
    "no schema": (lambda: [batch(arrow(n=[1])), complete()], CannotRun),
    "another type": (lambda: [schema_of_longs("n"), batch(arrow(n=["x"])), complete()], CannotRun),
    "another column": (lambda: [schema_of_longs("n", "m"), batch(arrow(n=[1])), complete()], CannotRun),
    "rows without end": (lambda: endless(arrow(n=list(range(20_000)))), ResultTooLarge),
    "nothing": (list, CannotRun),
}
"""Answers to a query for one column `n`, and what becomes of the query."""
