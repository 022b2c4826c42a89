"""What workers log of jobs: the facts in the message, and the same facts as fields."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_jobqueue import job, services
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)
JOBQUEUE = "django_jobqueue.worker"


def messages(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if record.name == JOBQUEUE and record.msg.startswith(start)
    ]


def fields(caplog: pytest.LogCaptureFixture, start: str) -> dict[str, Any]:
    (record,) = [record for record in caplog.records if record.name == JOBQUEUE and record.msg.startswith(start)]
    return vars(record)


def test_a_failure_says_which_job_which_attempt_and_when_the_next_one_is(queue, run, caplog):
    @job(queue=queue.name, name="ship", retry_limit=2, retry_delay=3600)
    def ship() -> None:
        raise ValueError("the card has expired\nand more")

    run(queue.name)
    waiting = ends(ship.using(singleton_key="finn").send(), JobState.RETRY)

    assert messages(caplog, "job failed:") == [
        f"job failed: {queue} #{waiting.seq} ship key=finn attempt 1/3: ValueError: the card has expired;"
        " next attempt in 3600 s"
    ]
    told = fields(caplog, "job failed:")
    assert (told["job"], told["queue"], told["key"]) == (str(waiting.pk), queue.name, "finn")
    assert (told["attempt"], told["retries"], told["retry_limit"], told["retry_in_seconds"]) == (1, 1, 2, 3600)
    assert told["error"] == "ValueError: the card has expired"


@pytest.mark.parametrize(
    ("on_exhausted", "state", "then"),
    (
        ("block", JobState.FAILED, "its key is blocked until an operator retries or skips the job"),
        ("skip", JobState.STOPPED, "its queue skips it and its key goes on"),
    ),
)
def test_a_failure_for_good_says_what_becomes_of_the_key(fifo_queue, run, caplog, on_exhausted, state, then):
    services.update_queue(fifo_queue.name, on_exhausted=on_exhausted)

    def fail() -> None:
        raise LookupError("gone")

    failed = sent(fifo_queue, singleton_key="a", retry_limit=0)
    run(fifo_queue.name, fail)
    ends(failed, state)

    assert messages(caplog, "job failed for good") == [
        f"job failed for good: {fifo_queue} #{failed.seq} key=a attempt 1/1: LookupError: gone; {then}"
    ]


def test_attempts_without_a_limit_have_no_last_one(queue, run, caplog):
    @job(queue=queue.name, name="ship", retry_limit=None, retry_delay=3600)
    def ship() -> None:
        raise ValueError

    run(queue.name)
    ends(ship.send(), JobState.RETRY)

    assert "ship attempt 1 (no limit): ValueError; next attempt" in messages(caplog, "job failed:")[0]


def test_a_job_without_a_handler_is_named(queue, run, settings, caplog):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "HANDLER_GRACE_SECONDS": 0}
    run(queue.name)
    missing = ends(sent(queue, name="shop.gone"), JobState.FAILED)

    number = rf"(#{missing.seq}|{missing.pk})"  # the number is read only where other code sees the job
    (message,) = messages(caplog, "no handler")
    assert re.fullmatch(rf"no handler: {queue} {number} shop\.gone: There is no handler named 'shop\.gone'", message)
    assert fields(caplog, "no handler")["handler"] == "shop.gone"


def test_a_lost_claim_names_its_job(queue, run, gate, caplog):
    held = sent(queue, retry_limit=0)
    run(queue.name, gate.wait)
    until(gate.reached.is_set, "the handler runs")

    Job.objects.filter(pk=held.pk).update(attempt=7)  # as if another worker had claimed it again
    gate.opened.set()

    until(lambda: messages(caplog, "claim lost"), "it is logged")
    assert f"claims 1, the first {queue} " in messages(caplog, "claim lost")[0]
    assert fields(caplog, "claim lost")["jobs"] == [str(held.pk)]
