"""What workers log of jobs: the facts in the message, and the same facts as fields."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from django_jobqueue import job, services
from django_jobqueue.handlers import FailForGood
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from django_jobqueue.worker.console import LOGGER, show_log
from django_jobqueue.worker.job_log import MOST_LINES, JobLog
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.slots import Slots
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
    assert isinstance(told["exc_info"][1], ValueError)
    assert [frame.name for frame in traceback.extract_tb(told["exc_info"][2])] == ["ship"]


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


@pytest.fixture
def talkative(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, JOBQUEUE)


def test_each_job_that_ends_has_a_line_with_how_long_it_ran(queue, run, talkative, caplog):
    async def later() -> None:
        pass

    job(queue=queue.name, name="ship", retry_limit=2)(lambda: None)
    job(queue=queue.name, name="store", atomic=True)(lambda: None)
    job(queue=queue.name, name="later")(later)
    run(queue.name)
    shipped = ends(sent(queue, name="ship", singleton_key="finn", retry_limit=2))
    others = [ends(sent(queue, name=name)) for name in ("store", "later")]

    until(lambda: len(messages(caplog, "job completed")) == 3, "all have a line")
    first, *rest = messages(caplog, "job completed")
    label = (
        rf"{queue} (#{shipped.seq}|{shipped.pk}) ship key=finn"  # the number is read only where other code sees the job
    )
    assert re.fullmatch(rf"job completed: {label} attempt 1(/3)? in \d+\.\d+ m?s", first)
    assert len(rest) == len(others)
    told = vars(next(record for record in caplog.records if record.msg.startswith("job completed")))
    assert (told["job"], told["handler"], told["key"], told["attempt"]) == (str(shipped.pk), "ship", "finn", 1)
    assert 0 < told["seconds"] < 60


def test_a_lost_claim_is_not_listed_as_completed(queue, run, gate, talkative, caplog):
    held = sent(queue, retry_limit=0)
    run(queue.name, gate.wait)
    until(gate.reached.is_set, "the handler runs")

    Job.objects.filter(pk=held.pk).update(attempt=7)
    gate.opened.set()

    until(lambda: messages(caplog, "claim lost"), "it is logged")
    assert messages(caplog, "job completed") == []


def test_a_job_that_an_operator_cancelled_is_listed_as_cancelled(queue, run, gate, talkative, caplog):
    def handler() -> None:
        gate.wait()
        raise FailForGood("stopped half way")

    held = sent(queue)
    run(queue.name, handler)
    until(gate.reached.is_set, "the handler runs")
    services.cancel(held.pk)
    gate.opened.set()

    ends(held, JobState.STOPPED)
    until(lambda: messages(caplog, "job cancelled"), "it is listed")


def test_many_jobs_are_summed_up_and_not_listed(talkative, caplog):
    log = JobLog("w", 1, Slots(0))
    log.tally.completed = 60

    assert log.takes(MOST_LINES)
    assert not log.takes(1)
    log.sum_up(time.monotonic() + 1)
    assert not log.takes(1), "the second before was busy"
    log.sum_up(time.monotonic() + 30)
    assert log.takes(1)

    summary, *_ = messages(caplog, "jobs ended")
    assert summary.startswith("jobs ended: 60 completed, 0 failed, 0 retried in 1.")


def test_a_worker_that_does_not_log_jobs_decides_so_once_for_a_batch(caplog):
    log = JobLog("w", 1, Slots(0))

    assert not log.takes(1)
    log.sum_up(time.monotonic(), at_once=True)
    assert messages(caplog, "jobs ended") == []


# ------------------------------------------------------------------------------------------- a project without logging


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The logger of the package as in a new project."""
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "parent", logging.Logger("root of the test"))  # pytest has its own handlers at the root
    monkeypatch.setattr(logger, "handlers", [])
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


@pytest.mark.parametrize(("verbosity", "level"), ((0, "WARNING"), (1, "INFO"), (2, "INFO"), (3, "DEBUG")))
def test_a_project_without_logging_sees_the_log(unconfigured, verbosity, level):
    show_log(WorkerOptions(verbosity=verbosity))
    show_log(WorkerOptions(verbosity=verbosity))  # the process of a child may have it already

    assert [logging.getLevelName(handler.level) for handler in unconfigured.handlers] == [level]
    assert logging.getLevelName(unconfigured.level) == level


@pytest.mark.parametrize("name", ("", LOGGER, JOBQUEUE))
def test_logging_that_a_project_has_configured_is_left_alone(unconfigured, monkeypatch, name):
    configured = logging.getLogger(name) if name else unconfigured.parent
    monkeypatch.setattr(configured, "handlers", [logging.NullHandler()])

    show_log(WorkerOptions())

    assert unconfigured.level == logging.NOTSET
    assert [type(handler) for handler in unconfigured.handlers] in ([], [logging.NullHandler])


def test_the_level_that_a_project_has_set_stays(unconfigured):
    unconfigured.setLevel(logging.ERROR)

    show_log(WorkerOptions())

    assert (unconfigured.level, len(unconfigured.handlers)) == (logging.ERROR, 1)


def test_no_secret_of_an_error_is_in_the_log(queue, run, caplog):
    @job(queue=queue.name, name="charge", retry_limit=0)
    def charge(token: str) -> None:
        try:
            raise KeyError(f"password={token}")
        except KeyError as error:
            raise ValueError(f"charge(token='{token}') was refused") from error

    run(queue.name)
    ends(charge.send(token="hunter2"), JobState.FAILED)

    assert "hunter2" not in caplog.text + str([vars(record) for record in caplog.records if record.exc_info is None])
    assert "ValueError: charge(token='********') was refused" in caplog.text
    assert "KeyError: 'password=********" in caplog.text
