"""What Sentry is told of jobs, by its own SDK: an event for each failed attempt, and traces from sender to handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from django_jobqueue import job, services
from django_jobqueue.handlers import CancelJob, FailForGood, RetryLater, Snooze
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)
SENTRY = "django_jobqueue.sentry.Sentry"


class Told(Transport):
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json is not None]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") != "transaction" and "event_id" in item]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]

    def of(self, job: Job) -> list[dict[str, Any]]:
        return [event for event in self.errors if event["tags"].get("jobqueue.job") == str(job.pk)]


@pytest.fixture
def told(settings: Any) -> Iterator[Told]:
    """What Sentry is told, with the integrations that it turns on by itself, that of logging too."""
    transport = Told()
    before = sentry_sdk.get_global_scope().client
    sentry_sdk.init(
        dsn="http://key@127.0.0.1/1", transport=transport, traces_sample_rate=1.0, auto_session_tracking=False
    )
    settings.JOBQUEUE = {**settings.JOBQUEUE, "CARRY": [SENTRY]}
    yield transport
    sentry_sdk.get_client().close(0)
    sentry_sdk.get_global_scope().set_client(before)


def last(event: dict[str, Any]) -> dict[str, Any]:
    return event["exception"]["values"][-1]  # type: ignore[no-any-return]


def test_each_failed_attempt_is_one_event_with_its_exception_and_its_job(queue, run, told):
    def ship(n: int) -> None:
        raise ValueError(f"order {n} is gone")

    job(queue=queue.name, name="ship", retry_limit=1, retry_delay=0)(ship)
    run(queue.name)
    failed = ends(
        sent(queue, {"n": 7}, name="ship", singleton_key="finn", retry_limit=1, retry_delay=0), JobState.FAILED
    )

    first, second = told.errors
    assert [(last(each)["type"], last(each)["value"], each["level"]) for each in (first, second)] == [
        ("ValueError", "order 7 is gone", "warning"),
        ("ValueError", "order 7 is gone", "error"),
    ]
    assert first["tags"] == {
        "jobqueue.queue": queue.name,
        "jobqueue.handler": "ship",
        "jobqueue.key": "finn",
        "jobqueue.job": str(failed.pk),
        "jobqueue.attempt": "1",
    }
    assert [frame["function"] for frame in last(first)["stacktrace"]["frames"]] == ["ship"]
    assert (second["contexts"]["job"]["attempt"], second["contexts"]["job"]["number"]) == (2, failed.seq)


def test_only_last_attempts_are_reported_if_the_project_says_so(queue, run, told, settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "SENTRY_RETRIES": False}

    @job(queue=queue.name, name="ship", retry_limit=1, retry_delay=0)
    def ship() -> None:
        raise ValueError

    @job(queue=queue.name, name="stop")
    def stop() -> None:
        raise FailForGood("no such order")

    @job(queue=queue.name, name="rule", retries={LookupError: False})
    def rule() -> None:
        raise LookupError

    run(queue.name)
    jobs = [ends(each.send(), JobState.FAILED) for each in (ship, stop, rule)]

    assert [[event["tags"]["jobqueue.attempt"] for event in told.of(each)] for each in jobs] == [["2"], ["1"], ["1"]]


def test_decisions_of_handlers_are_no_errors(queue, run, told):
    decisions = {"snooze": Snooze(3600), "cancel": CancelJob("not needed"), "later": RetryLater(delay=3600)}

    @job(queue=queue.name, name="decide", retry_limit=3)
    def decide(which: str) -> None:
        raise decisions[which]

    run(queue.name)
    ends(decide.send(which="snooze"), JobState.RETRY)
    ends(decide.send(which="cancel"), JobState.STOPPED)
    ends(decide.send(which="later"), JobState.RETRY)

    until(lambda: len(told.transactions) == 3, "the transactions have ended")
    assert told.errors == []
    assert [each["contexts"]["trace"]["status"] for each in told.transactions][:2] == ["ok", "ok"]
    ends(decide.using(retry_limit=0).send(which="later"), JobState.FAILED)
    assert [last(event)["type"] for event in told.errors] == ["RetryLater"]


def test_an_async_handler_is_reported_with_its_own_job(queue, run, told):
    @job(queue=queue.name, name="later", retry_limit=0)
    async def later(n: int) -> None:
        raise LookupError(f"nothing at {n}")

    run(queue.name)
    jobs = [later.send(n=n) for n in range(5)]
    for each in jobs:
        ends(each, JobState.FAILED)

    assert [last(event)["value"] for each in jobs for event in told.of(each)] == [f"nothing at {n}" for n in range(5)]
    assert len(told.errors) == 5


@pytest.mark.parametrize("is_async", (False, True), ids=("in a thread", "in the event loop"))
def test_a_handler_whose_time_is_used_up_is_one_event(queue, run, told, is_async):
    def wait() -> None:
        while True:
            time.monotonic()

    async def wait_async() -> None:
        await asyncio.Event().wait()

    run(queue.name, wait_async if is_async else wait)
    ended = ends(sent(queue, retry_limit=0, expire_in_seconds=1), JobState.EXPIRED)

    assert len(told.of(ended)) == len(told.errors) == 1


def test_failures_without_an_exception_are_reported_by_the_log(queue, run, told, settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "HANDLER_GRACE_SECONDS": 0}
    run(queue.name)
    ends(sent(queue, name="shop.gone"), JobState.FAILED)

    assert any("no handler" in event["logentry"]["message"] for event in told.errors)


def test_the_trace_of_the_sender_goes_on_in_the_handler(queue, run, told):
    @job(queue=queue.name, name="ship")
    def ship() -> None:
        with sentry_sdk.start_span(op="shop", name="inside"):
            pass

    with sentry_sdk.start_transaction(op="http.server", name="/checkout") as request:
        shipped = ship.send()
        services.send_many(queue.name, [{"name": "ship"}] * 2)
    run(queue.name)
    for each in Job.objects.all():
        ends(each)
    until(lambda: len(told.transactions) == 4, "the transactions have ended")

    (sender,) = [each for each in told.transactions if each["transaction"] == "/checkout"]
    attempts = [each for each in told.transactions if each["transaction"] == "ship"]
    publishing = [span for span in sender["spans"] if span["op"] == "queue.publish"]
    assert {each["contexts"]["trace"]["trace_id"] for each in attempts} == {request.trace_id}
    assert {each["contexts"]["trace"]["parent_span_id"] for each in attempts} == {
        span["span_id"] for span in publishing
    }
    assert shipped is not None
    assert publishing[0]["data"]["messaging.message.id"] == str(shipped.pk)
    assert [span["description"] for each in attempts for span in each["spans"] if span["op"] == "shop"] == [
        "inside"
    ] * 3


def test_a_sender_without_a_transaction_still_passes_on_its_trace(queue, run, told):
    @job(queue=queue.name, name="ship", retry_limit=0)
    def ship() -> None:
        raise ValueError

    with sentry_sdk.isolation_scope():
        trace = sentry_sdk.get_traceparent()
        shipped = ship.send()
    run(queue.name)
    ends(shipped, JobState.FAILED)

    assert trace is not None
    assert told.errors[0]["contexts"]["trace"]["trace_id"] == trace.split("-")[0]


SECRET = "-".join(("hunter", "2"))  # Sentry also shows lines of the source


def test_no_secret_reaches_sentry(queue, run, told):
    class Login:
        def __repr__(self) -> str:
            return f"Login(password='{SECRET}')"

    def charge(token: str) -> None:
        card, login = {"api_key": token, "n": 1}, Login()
        raise ValueError(f"{login!r} at https://shop:{token}@bank.example.com", len(card))

    job(queue=queue.name, name="charge", retry_limit=0)(charge)
    run(queue.name)
    ends(sent(queue, {"token": SECRET}, name="charge", retry_limit=0), JobState.FAILED)
    until(lambda: told.errors, "the event is sent")

    assert SECRET not in str(told.items)
    assert last(told.errors[0])["stacktrace"]["frames"][-1]["vars"]["card"] == {"api_key": "********", "n": "1"}
