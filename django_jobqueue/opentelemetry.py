"""Traces: a producer span for every send, a consumer span for every attempt, linked. Needs the extra ``opentelemetry``.

``JOBQUEUE = {"CARRY": ["django_jobqueue.opentelemetry.Tracing"]}`` turns it on. The project chooses where spans are
exported to, with OpenTelemetry's SDK.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from . import __version__
from .handlers import CancelJob, RetryLater, Snooze
from .redaction import redacted_text
from .text import printed

if TYPE_CHECKING:
    from .carriers import Outgoing
    from .models import Job

SYSTEM = "django_jobqueue"
FLUSH_MS = 2_000
_DECISIONS = (CancelJob, Snooze, RetryLater, asyncio.CancelledError)  # decisions of a handler, not errors


class Tracing:
    """The carrier of trace contexts: W3C, or of the propagator that is configured."""

    name = "trace"

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(SYSTEM, __version__)

    @contextmanager
    def sending(self, queue: str, jobs: Sequence[Outgoing]) -> Iterator[dict[str, str] | None]:
        attributes = _attributes(queue, "send")
        if len(jobs) == 1:
            attributes["messaging.message.id"] = str(jobs[0].id)
            attributes |= _of_job(jobs[0].name, jobs[0].singleton_key)
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        with self._tracer.start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes):
            cargo: dict[str, str] = {}
            propagate.inject(cargo)
            yield cargo or None

    @contextmanager
    def running(self, job: Job, value: Any) -> Iterator[None]:
        sender = propagate.extract(value if isinstance(value, dict) else {})
        sent_by = trace.get_current_span(sender).get_span_context()
        attributes = _attributes(job.queue_id, "process") | _of_job(job.name, job.singleton_key)
        attributes |= {"messaging.message.id": str(job.pk), "jobqueue.attempt": job.attempt}
        with self._tracer.start_as_current_span(
            f"process {job.queue_id}",
            context=sender,
            kind=SpanKind.CONSUMER,
            links=[Link(sent_by)] if sent_by.is_valid else [],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                _note(span, error)
                raise

    def flush(self) -> None:
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(FLUSH_MS)


def _attributes(queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _of_job(name: str, key: str) -> dict[str, Any]:
    return {label: value for label, value in (("jobqueue.handler", name), ("jobqueue.singleton_key", key)) if value}


def _note(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    message = redacted_text(printed(error))
    if isinstance(error, _DECISIONS):
        span.add_event(type(error).__name__, {"message": message})
        return
    trace_back = redacted_text("".join(traceback.format_exception(error)))
    span.record_exception(error, {"exception.message": message, "exception.stacktrace": trace_back})
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {message}"))
