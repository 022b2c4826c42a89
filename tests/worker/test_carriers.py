"""What jobs carry from their sender to their handler: request ids and traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_jobqueue import carriers, services
from django_jobqueue.carriers import RequestIdFilter, get_request_id, request_id
from django_jobqueue.handlers import FailForGood, Snooze
from django_jobqueue.middleware import RequestIdMiddleware
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.past import reread

from .conftest import ends, sent

REQUEST_ID = "django_jobqueue.carriers.RequestId"
TRACING = "django_jobqueue.opentelemetry.Tracing"


@pytest.fixture
def carried(settings: Any) -> None:
    settings.JOBQUEUE = {**settings.JOBQUEUE, "CARRY": [REQUEST_ID]}


# ------------------------------------------------------------------------------------------------------- request ids


def test_nothing_is_carried_unless_settings_say_so(queue):
    with request_id("r1"):
        job = sent(queue.name)

    assert job.carried is None
    assert reread(job).carried is None


def test_a_job_carries_the_id_of_the_request_that_sent_it(queue, carried):
    with request_id("r1"):
        job = sent(queue.name)
        many = services.send_many(
            queue.name, [{"data": 1}, {"data": 2, "delay": 60}, {"id": str(job.pk)[:-4] + "0000"}]
        )

    assert job.carried == {"request_id": "r1"}
    assert [one.carried for one in Job.objects.filter(pk__in=[job.pk, *many])] == [{"request_id": "r1"}] * 4
    assert {one.carried["request_id"] for one in services.fetch(queue.name, 2)} == {"r1"}


def test_without_a_request_nothing_is_stored(queue, carried):
    assert reread(sent(queue.name)).carried is None


def test_handlers_see_the_id_and_what_they_send_carries_it_on(transactional_db, queue, carried, run):
    seen = []

    def plain() -> None:
        seen.append(get_request_id())
        if len(seen) == 1:
            sent(queue.name, name="second")

    run(queue.name, plain)
    with request_id("r1"):
        first = sent(queue.name)
    ends(first)
    second = ends(Job.objects.get(name="second"))

    assert seen == ["r1", "r1"]
    assert second.carried == {"request_id": "r1"}
    assert get_request_id() is None


def test_an_async_handler_sees_it_too(transactional_db, queue, carried, run):
    async def asynchronous() -> str | None:
        await asyncio.sleep(0)
        return get_request_id()

    run(queue.name, asynchronous)
    with request_id("r2"):
        job = sent(queue.name)

    assert ends(job).output == "r2"


def test_a_dead_letter_carries_what_its_source_carried(queue, carried):
    services.create_queue("dead")
    services.update_queue(queue.name, dead_letter="dead")
    with request_id("r1"):
        job = sent(queue.name, retry_limit=0)
    services.fail(services.fetch(queue.name)[0], "no")

    assert Job.objects.get(source_id=job.pk).carried == {"request_id": "r1"}


@pytest.mark.parametrize(("given", "kept"), (("abc-123", True), ("", False), ("x" * 300, False), ("a\nb", False)))
def test_the_middleware_takes_a_sensible_id_or_makes_one(given, kept):
    seen = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(get_request_id())
        return HttpResponse()

    request = RequestFactory().get("/", headers={"X-Request-ID": given})
    response = RequestIdMiddleware(view)(request)

    assert isinstance(response, HttpResponse)
    assert response.headers["X-Request-ID"] == seen[0]
    assert (seen[0] == given) is kept
    assert seen[0]
    assert get_request_id() is None


def test_the_middleware_works_for_async_views():
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(get_request_id())

    async def ask() -> Any:
        answer: Any = RequestIdMiddleware(view)(RequestFactory().get("/", headers={"X-Request-ID": "a1"}))
        return await answer

    response = asyncio.run(ask())
    assert (response.content, response.headers["X-Request-ID"]) == (b"a1", "a1")


def test_log_records_can_show_it():
    record = logging.LogRecord("x", logging.INFO, "x", 1, "hello", None, None)
    with request_id("r1"):
        RequestIdFilter().filter(record)

    assert logging.Formatter("%(request_id)s %(message)s").format(record) == "r1 hello"


# ------------------------------------------------------------------------------------------------- carriers that fail


class Broken:
    name = "broken"

    def sending(self, queue: str, jobs: Any) -> Any:
        raise RuntimeError("no exporter")

    def running(self, job: Job, value: Any) -> Any:
        raise RuntimeError("no exporter")

    def flush(self) -> None:
        raise RuntimeError("no exporter")


class Half:
    name = "half"

    def sending(self, queue: str, jobs: Any) -> Any:
        return nullcontext("x")


def test_a_carrier_that_fails_breaks_neither_sends_nor_runs(
    transactional_db,
    queue,
    settings,
    run,
    caplog,
):
    settings.JOBQUEUE = {"CARRY": [f"{__name__}.Broken", REQUEST_ID]}
    run(queue.name, lambda: get_request_id())

    with request_id("r1"):
        job = sent(queue.name)

    assert ends(job).output == "r1"
    assert "carrier failed" in caplog.text


@pytest.mark.parametrize("path", ("nowhere.Carrier", f"{__name__}.Half", f"{__name__}.REQUEST_ID"))
def test_a_carrier_that_is_none_is_named(path, settings):
    settings.JOBQUEUE = {"CARRY": [path]}

    with pytest.raises(ImproperlyConfigured, match=path.replace(".", r"\.")):
        carriers.carriers()


# ------------------------------------------------------------------------------------------------------------- traces


@pytest.fixture
def spans(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans that ended, by OpenTelemetry's own SDK."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    settings.JOBQUEUE = {**settings.JOBQUEUE, "CARRY": [TRACING]}
    yield exporter
    provider.shutdown()


def id_of(span: Any) -> int:
    return int(span.get_span_context().span_id)


def of_kind(spans: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind == kind]


def test_every_attempt_has_a_span_linked_to_the_send(transactional_db, fifo_queue, spans, run):
    def handler(n: int) -> None:
        if n == 1 and len(of_kind(spans, SpanKind.CONSUMER)) < 1:
            raise ValueError("not yet")

    run(fifo_queue.name, handler)
    with trace.get_tracer("test").start_as_current_span("the request") as request:
        job = sent(fifo_queue.name, {"n": 1}, singleton_key="a")
    ends(job)

    (producer,) = of_kind(spans, SpanKind.PRODUCER)
    first, second = of_kind(spans, SpanKind.CONSUMER)
    assert producer.name == "send orders"
    assert producer.parent is not None
    assert producer.parent.span_id == id_of(request)
    for place, attempt in enumerate((first, second), 1):
        assert attempt.name == "process orders"
        assert attempt.parent is not None
        assert attempt.parent.span_id == id_of(producer)
        assert [link.context.span_id for link in attempt.links] == [id_of(producer)]
        assert (
            dict(attempt.attributes or {}).items()
            >= {
                "messaging.system": "django_jobqueue",
                "messaging.destination.name": "orders",
                "messaging.message.id": str(job.pk),
                "jobqueue.singleton_key": "a",
                "jobqueue.attempt": place,
            }.items()
        )
    assert first.status.status_code == StatusCode.ERROR
    assert first.events[0].name == "exception"
    assert second.status.status_code == StatusCode.UNSET


def test_a_handler_s_decision_is_no_error_in_the_trace(transactional_db, queue, spans, run):
    def handler() -> None:
        raise Snooze(3600)

    run(queue.name, handler)
    ends(sent(queue.name), JobState.RETRY)

    (attempt,) = of_kind(spans, SpanKind.CONSUMER)
    assert attempt.status.status_code == StatusCode.UNSET
    assert [event.name for event in attempt.events] == ["Snooze"]


def test_many_jobs_sent_at_once_have_one_producer(transactional_db, queue, spans, run):
    async def handler() -> None:
        raise FailForGood("no")

    services.send_many(queue.name, [{}, {}])
    with run(queue.name, handler):
        for job in Job.objects.all():
            ends(job, JobState.FAILED)

    (producer,) = of_kind(spans, SpanKind.PRODUCER)
    assert (producer.attributes or {})["messaging.batch.message_count"] == 2
    assert [span.status.status_code for span in of_kind(spans, SpanKind.CONSUMER)] == [StatusCode.ERROR] * 2


@contextmanager
def in_german(job: Job) -> Iterator[None]:
    with trace.get_tracer("test").start_as_current_span("around"):
        yield


def test_what_settings_put_around_runs_is_inside_the_trace(transactional_db, queue, spans, settings, run):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "AROUND": f"{__name__}.in_german"}
    run(queue.name, lambda: None)
    ends(sent(queue.name))

    (attempt,) = of_kind(spans, SpanKind.CONSUMER)
    (inside,) = [span for span in spans.get_finished_spans() if span.name == "around"]
    assert inside.parent is not None
    assert inside.parent.span_id == id_of(attempt)
