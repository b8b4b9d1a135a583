"""OpenTelemetry spans, off by default: then nothing of it is imported and a span costs a comparison.

A trace is carried from process to process by the `traceparent` header; between an event and the tasks it makes, which
may be hours apart, by the attribute `trace.task` on every span about a task.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from tracelake.errors import SetupError
from tracelake.settings import TracingSettings

OFF: Final[AbstractContextManager[Any]] = nullcontext()
NO_HEADERS: Final[dict[str, str]] = {}

_tracing: _Tracing | None = None


def start_tracing(process: str, settings: TracingSettings) -> None:
    """Does nothing unless there is an endpoint."""
    global _tracing  # noqa: PLW0603 - as with logging, one a process, set when it starts
    if settings.endpoint is not None and _tracing is None:
        _tracing = _Tracing(process, settings.endpoint, settings.sample)


def stop_tracing() -> None:
    """Sends the spans that are left."""
    global _tracing  # noqa: PLW0603 - "
    if _tracing is not None:
        _tracing.close()
        _tracing = None


def is_tracing() -> bool:
    return _tracing is not None


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Around what it measures; below the span that is current here, or the first of a new trace."""
    return OFF if _tracing is None else _tracing.span(name, attributes)


def server_span(name: str, headers: Iterable[tuple[bytes, bytes]], **attributes: Any) -> AbstractContextManager[Any]:
    """Around a request: below the caller's span, if its headers name one."""
    return OFF if _tracing is None else _tracing.server_span(name, headers, attributes)


def batch_span(name: str, callers: Sequence[Any], **attributes: Any) -> AbstractContextManager[Any]:
    """Around what is done for several callers at once: a trace of its own, linked to each of theirs."""
    return OFF if _tracing is None else _tracing.batch_span(name, callers, attributes)


def current_span() -> Any:
    """The current span, to be linked to; None while tracing is off."""
    return None if _tracing is None else _tracing.current_span()


def trace_headers() -> Mapping[str, str]:
    """Headers that carry the current span to the next process."""
    return NO_HEADERS if _tracing is None else _tracing.trace_headers()


def set_attributes(**attributes: Any) -> None:
    """Attributes for the current span."""
    if _tracing is not None:
        _tracing.set_attributes(attributes)


def record_span(name: str, seconds: float, **attributes: Any) -> None:
    """Records a span that has ended already."""
    if _tracing is not None:
        _tracing.record_span(name, seconds, attributes)


class _Tracing:
    def __init__(self, process: str, endpoint: str, sample: float) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as missing:
            raise SetupError(
                f"tracing.endpoint is set, but OpenTelemetry is not installed ({missing.name})",
                where="tracing.endpoint",
                hint="pip install 'tracelake[otel]' (in a checkout: make setup), or unset it",
            ) from None
        self._trace, self._propagate = trace, TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": f"trace-{process}", "service.namespace": "trace"}),
            sampler=ParentBasedTraceIdRatio(sample),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))
        self._tracer = self._provider.get_tracer("tracelake")

    def close(self) -> None:
        self._provider.shutdown()

    def span(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[Any]:
        return self._tracer.start_as_current_span(name, attributes=_flat(attributes))

    def server_span(
        self, name: str, headers: Iterable[tuple[bytes, bytes]], attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers if key.startswith(b"trace")}
        return self._tracer.start_as_current_span(
            name,
            context=self._propagate.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes=_flat(attributes),
        )

    def batch_span(
        self, name: str, callers: Sequence[Any], attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        links = [self._trace.Link(caller) for caller in callers if caller is not None and caller.is_valid]
        return self._tracer.start_as_current_span(name, links=links, attributes=_flat(attributes))

    def current_span(self) -> Any:
        return self._trace.get_current_span().get_span_context()

    def trace_headers(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        self._propagate.inject(headers)
        return headers

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._trace.get_current_span().set_attributes(_flat(attributes))

    def record_span(self, name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
        now = time.time_ns()
        one = self._tracer.start_span(name, attributes=_flat(attributes), start_time=now - int(seconds * 1e9))
        one.end(end_time=now)


def _flat(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """`task=...` becomes the attribute `trace.task`; ids become text."""
    return {
        f"trace.{name}": value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in attributes.items()
        if value is not None
    }
