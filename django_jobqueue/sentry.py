"""Sentry: an event for every failed attempt, and a trace from the sender to the handler. Needs the extra ``sentry``.

``JOBQUEUE = {"CARRY": ["django_jobqueue.sentry.Sentry"]}`` turns it on. The project chooses where events are sent to,
with ``sentry_sdk.init()``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import sentry_sdk
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.utils import event_from_exception, safe_repr

from . import handlers
from .conf import get_settings
from .handlers import CancelJob, FailForGood, JobExpired, RetryLater, Snooze
from .redaction import redacted, redacted_text
from .tracebacks import without_our_frames

if TYPE_CHECKING:
    from .carriers import Outgoing
    from .models import Job

ORIGIN = "auto.queue.django_jobqueue"
FLUSH_SECONDS = 2.0
MOST_DEPTH, MOST_ITEMS = 5, 100  # of the variables in an event
MOST_TAG = 200  # Sentry drops longer values
MOST_REMEMBERED = 10_000  # attempts that were reported and whose log record has not come yet
_TRACE, _BAGGAGE = "sentry-trace", "baggage"


class Sentry:
    """The carrier of Sentry's trace headers; it reports the exceptions of handlers."""

    name = "sentry"

    def __init__(self) -> None:
        self._reported: dict[tuple[str, int], None] = {}  # by job and attempt
        add_global_event_processor(self._without_repeats)

    @contextmanager
    def sending(self, queue: str, jobs: Sequence[Outgoing]) -> Iterator[dict[str, str] | None]:
        if not sentry_sdk.get_client().is_active():
            yield None
        elif sentry_sdk.get_current_span() is None:
            yield _headers()
        else:
            with sentry_sdk.start_span(op="queue.publish", name=f"send {queue}", origin=ORIGIN) as span:
                span.set_data("messaging.destination.name", queue)
                if len(jobs) == 1:
                    span.set_data("messaging.message.id", str(jobs[0].id))
                else:
                    span.set_data("messaging.batch.message_count", len(jobs))
                yield _headers()

    @contextmanager
    def running(self, job: Job, value: Any) -> Iterator[None]:
        headers = value if isinstance(value, dict) else {}
        decision: BaseException | None = None
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, job)
            transaction = sentry_sdk.continue_trace(
                headers, op="queue.process", name=job.name or job.queue_id, source="task", origin=ORIGIN
            )
            with sentry_sdk.start_transaction(transaction) as span:
                span.set_data("messaging.destination.name", job.queue_id)
                span.set_data("messaging.message.id", str(job.pk))
                span.set_data("messaging.message.retry.count", job.attempt - 1)
                span.set_status("ok")
                try:
                    yield
                except BaseException as error:
                    if not _is_decision(job, error):
                        self._report(job, error)
                        raise
                    decision = error
        if decision is not None:  # raised here, because the transaction would note it as an error
            raise decision

    def flush(self) -> None:
        sentry_sdk.flush(timeout=FLUSH_SECONDS)

    def _report(self, job: Job, error: BaseException) -> None:
        is_last = _is_last(job, error)
        if not is_last and (isinstance(error, RetryLater) or not get_settings().SENTRY_RETRIES):
            return
        event, hint = event_from_exception(
            (type(error), error, without_our_frames(error.__traceback__)),
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "django_jobqueue", "handled": False},
        )
        event["level"] = "error" if is_last else "warning"
        _hide_secrets(event)
        while len(self._reported) >= MOST_REMEMBERED:
            self._reported.pop(next(iter(self._reported)), None)
        self._reported[str(job.pk), job.attempt] = None
        sentry_sdk.capture_event(event, hint=hint)

    def _without_repeats(self, event: Any, hint: dict[str, Any]) -> Any:
        """Drop the event of a log record about a failure that was reported with its exception."""
        record = hint.get("log_record")
        attempt = getattr(record, "job", None), getattr(record, "attempt", None)
        if attempt in self._reported and hasattr(record, "error"):
            self._reported.pop(attempt, None)
            return None
        return event


def _hide_secrets(event: Any) -> None:
    """Hide sensitive values in the texts of exceptions and in the variables of their frames."""
    for exception in event.get("exception", {}).get("values", ()):
        if isinstance(exception.get("value"), str):
            exception["value"] = redacted_text(exception["value"])
        for frame in (exception.get("stacktrace") or {}).get("frames", ()):
            if frame.get("vars"):
                frame["vars"] = redacted(_as_json(frame["vars"]))


def _as_json(value: Any, depth: int = 0) -> Any:
    """Variables as Sentry's SDK would write them, so that the texts of objects can be searched for secrets."""
    if isinstance(value, dict) and depth < MOST_DEPTH:
        return {str(key): _as_json(item, depth + 1) for key, item in list(value.items())[:MOST_ITEMS]}
    if isinstance(value, list | tuple) and depth < MOST_DEPTH:
        return [_as_json(item, depth + 1) for item in value[:MOST_ITEMS]]
    return value if value is None or isinstance(value, str | bool | int | float) else safe_repr(value)


def _headers() -> dict[str, str]:
    """What continues the trace of the sender in the handler."""
    headers = {_TRACE: sentry_sdk.get_traceparent(), _BAGGAGE: sentry_sdk.get_baggage()}
    return {name: value for name, value in headers.items() if value}


def _describe(scope: Any, job: Job) -> None:
    scope.clear_breadcrumbs()
    tags = {"queue": job.queue_id, "handler": job.name, "key": job.singleton_key, "job": str(job.pk)}
    for name, value in tags.items():
        if value:
            scope.set_tag(f"jobqueue.{name}", value[:MOST_TAG])
    scope.set_tag("jobqueue.attempt", str(job.attempt))
    scope.set_context(
        "job",
        {
            "id": str(job.pk),
            "number": job.seq,
            "queue": job.queue_id,
            "handler": job.name,
            "key": job.singleton_key,
            "attempt": job.attempt,
            "retries": job.retry_count,
            "retry_limit": job.retry_limit,
        },
    )


def _is_decision(job: Job, error: BaseException) -> bool:
    """Whether the attempt did not fail: its handler decided how the job goes on, or it was told to stop."""
    if isinstance(
        error, asyncio.CancelledError | JobExpired
    ):  # cancelled, or its claim was lost, or its time is used up
        return time.monotonic() < getattr(job, "deadline", inf)
    return isinstance(error, CancelJob | Snooze)


def _is_last(job: Job, error: BaseException) -> bool:
    """Whether the job will probably get no other attempt; that is decided when its failure is recorded."""
    if job.retry_limit is not None and job.retry_count >= job.retry_limit:
        return True
    handler = handlers.find(job.queue_id, job.name)
    is_plain = isinstance(error, Exception) and not isinstance(error, RetryLater)
    return isinstance(error, FailForGood) or (is_plain and handler is not None and handler.rule_for(error) is False)
