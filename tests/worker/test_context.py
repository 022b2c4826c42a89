"""The context a handler may ask for, and cancellation."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from django.db import transaction

from django_jobqueue import job, services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.handlers import CancelJob, JobContext
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.past import reread
from tests.waiting import until

from .conftest import ends

pytestmark = pytest.mark.django_db(transaction=True)


def test_progress_is_written_while_the_handler_runs(queue, run, gate):
    @job(queue=queue.name, takes_context=True)
    def convert(context: JobContext) -> None:
        context.progress(0.25, "first part")
        gate.wait()
        context.progress(1, "all")

    run(queue.name)
    one = convert.send()
    assert one is not None

    until(lambda: reread(one).progress == 0.25, "it is written")
    assert (reread(one).state, reread(one).progress_text) == (JobState.ACTIVE, "first part")
    gate.opened.set()
    ends(one)


def test_progress_of_an_atomic_handler_is_seen_before_it_commits(queue, run, gate):
    @job(queue=queue.name, takes_context=True, atomic=True)
    def convert(context: JobContext) -> None:
        context.progress(0.5)
        gate.wait()

    run(queue.name)
    one = convert.send()
    assert one is not None

    until(lambda: reread(one).progress == 0.5, "it is written")
    gate.opened.set()
    ends(one)


def test_the_last_progress_is_not_lost(queue, run):
    @job(queue=queue.name, takes_context=True)
    def convert(context: JobContext) -> None:
        for n in range(101):
            context.progress(n / 100, f"step {n}")

    run(queue.name)

    done = ends(convert.send())
    assert (done.progress, done.progress_text) == (1.0, "step 100")


@pytest.mark.parametrize("fraction", (-0.1, 1.5, float("nan"), "half"))
def test_a_progress_that_makes_no_sense_is_an_error_of_the_handler(queue, run, fraction):
    @job(queue=queue.name, takes_context=True, retry_limit=0)
    def convert(context: JobContext) -> None:
        context.progress(fraction)

    run(queue.name)

    assert "fraction" in ends(convert.send(), JobState.FAILED).error


def test_a_progress_text_may_be_anything(queue, run):
    @job(queue=queue.name, takes_context=True)
    def convert(context: JobContext) -> None:
        context.progress(0.5, "\x00\ud800" + "x" * 1000)

    run(queue.name)

    assert len(ends(convert.send()).progress_text) <= 255


def test_a_handler_knows_its_job_its_attempt_and_its_deadline(queue, run):
    @job(queue=queue.name, takes_context=True, expire_in_seconds=600)
    def look(context: JobContext) -> dict[str, object]:
        assert context.deadline is not None
        return {"id": str(context.job.pk), "attempt": context.attempt, "deadline": context.deadline.isoformat()}

    run(queue.name)

    done = ends(look.send())
    assert done.output is not None
    assert (done.output["id"], done.output["attempt"]) == (str(done.pk), 1)
    assert done.expire_at is not None
    assert done.output["deadline"] == done.expire_at.isoformat()
    assert done.assigned_at is not None
    assert done.expire_at - done.assigned_at == timedelta(seconds=600)


def test_a_log_line_of_a_handler_carries_the_facts_of_its_job(queue, run, caplog):
    @job(queue=queue.name, takes_context=True)
    def speak(context: JobContext) -> None:
        context.logger.warning("careful")

    run(queue.name)
    with caplog.at_level(logging.WARNING, "django_jobqueue.handlers"):
        done = ends(speak.using(singleton_key="k").send())

    (record,) = [record for record in caplog.records if record.getMessage() == "careful"]
    facts = {name: getattr(record, name) for name in ("job", "queue", "key", "attempt")}
    assert facts == {"job": str(done.pk), "queue": queue.name, "key": "k", "attempt": 1}


def test_touch_is_a_sign_of_life(queue, run, gate):
    @job(queue=queue.name, takes_context=True, heartbeat_seconds=3600)
    def long(context: JobContext) -> None:
        gate.wait()
        context.touch()
        touched.wait()

    touched = type(gate)()
    run(queue.name)
    one = long.send()
    assert one is not None
    assert gate.reached.wait(10)
    before = reread(one).heartbeat_at
    assert before is not None

    gate.opened.set()

    assert touched.reached.wait(10)
    until(lambda: (reread(one).heartbeat_at or before) > before, "it is written")
    touched.opened.set()
    ends(one)


# ------------------------------------------------------------------------------------------------------ cancellation


def test_a_plain_handler_sees_that_it_is_cancelled(queue, run, gate):  # B12
    @job(queue=queue.name, takes_context=True)
    def patient(context: JobContext) -> None:
        gate.reached.set()
        until(lambda: context.cancelled, "it is cancelled")
        raise CancelJob("as you wish")

    run(queue.name)
    one = patient.send()
    assert one is not None
    assert gate.reached.wait(10)

    services.cancel(one.pk)

    assert ends(one, JobState.STOPPED).error == "as you wish"


def test_a_handler_that_does_not_mind_a_cancellation_completes(queue, run, gate):
    @job(queue=queue.name)
    def stubborn() -> str:
        gate.wait()
        return "anyway"

    run(queue.name)
    one = stubborn.send()
    assert one is not None
    assert gate.reached.wait(10)

    services.cancel(one.pk)
    gate.opened.set()

    assert ends(one).output == "anyway"


def test_an_async_handler_is_cancelled(queue, run, gate):  # B12
    cleaned: list[str] = []

    @job(queue=queue.name)
    async def patient() -> None:
        gate.reached.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")

    run(queue.name)
    one = patient.send()
    assert one is not None
    assert gate.reached.wait(10)

    services.cancel(one.pk)

    now = ends(one, JobState.STOPPED, 5)
    assert (cleaned, now.attempt) == (["up"], 1)


def test_a_handler_whose_claim_was_lost_is_told_as_if_cancelled(queue, run, gate):  # F6
    @job(queue=queue.name, takes_context=True)
    def patient(context: JobContext) -> None:
        if context.attempt == 1:
            gate.reached.set()
            until(lambda: context.cancelled, "the handler sees it")
            gate.opened.set()

    run(queue.name)
    one = patient.send()
    assert one is not None
    assert gate.reached.wait(10)

    services.mark_worker_unresponsive(reread(one).assignee)

    assert ends(one).attempt == 2
    assert gate.opened.wait(5)  # soon, although its child holds nothing any more


def test_a_progress_outside_of_a_worker_does_nothing(queue):
    context = JobContext(Job(queue=queue))

    context.progress(0.5)
    context.touch()

    with pytest.raises(InvalidOption):
        context.progress(2)
    assert transaction.get_connection().in_atomic_block is False
