"""How an attempt may end: what handlers return and raise, and what that makes of their jobs."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_jobqueue import job, services
from django_jobqueue.handlers import CancelJob, FailForGood, RetryLater, Snooze
from django_jobqueue.models import Job
from django_jobqueue.states import FailureReason, JobState
from tests.past import reread, rewrite
from tests.waiting import until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)


def waits(one: Job) -> Job:
    """Until it waits for another attempt, with a delay."""
    return ends(one, JobState.RETRY)


# ------------------------------------------------------------------------------------------------------ what returns


@pytest.mark.parametrize("output", (None, 0, "text", [1, 2], {"a": {"b": None}}))
def test_what_a_handler_returns_is_its_output(queue, run, output):  # R386
    @job(queue=queue.name)
    def give() -> Any:
        return output

    run(queue.name)

    done = ends(give.send())
    assert (done.output, done.attempt, done.retry_count) == (output, 1, 0)


def test_an_async_handler_returns_its_output_too(queue, run):  # R386
    @job(queue=queue.name)
    async def double(number: int) -> int:
        return 2 * number

    run(queue.name)

    assert ends(double.send(21)).output == 42


@pytest.mark.parametrize("output", ({1, 2}, type, float("nan"), "\x00", {"a": {1: b"x"}}), ids=ascii)
def test_an_output_that_json_cannot_hold_is_cleaned_and_the_job_completes(queue, run, output):  # F51
    @job(queue=queue.name)
    def give() -> Any:
        return output

    run(queue.name)

    done = ends(give.send())
    assert done.output is not None
    assert done.attempt == 1


def test_a_coroutine_that_nobody_awaited_is_no_success(queue, run):
    """A plain function around an async one: its work was not done."""

    async def inner() -> int:
        return 1

    @job(queue=queue.name)
    def outer() -> Any:
        return inner()

    run(queue.name)

    done = ends(outer.using(retry_limit=0).send(), JobState.FAILED)
    assert "await" in done.error


# ------------------------------------------------------------------------------------------------------ what raises


def test_an_error_fails_the_attempt_with_its_message_and_the_way_it_came(queue, run):  # R390
    @job(queue=queue.name, retry_limit=1)
    def fall() -> None:
        raise ValueError("no address")

    run(queue.name)

    done = ends(fall.send(), JobState.FAILED)
    assert done.error.endswith("ValueError: no address")
    assert "in fall" in done.error
    assert (done.retry_count, done.attempt, done.reason) == (1, 2, FailureReason.ERROR)


def test_retry_later_chooses_when(queue, run):
    @job(queue=queue.name, retry_delay=1)
    def later(how: str) -> None:
        if how == "seconds":
            raise RetryLater(delay=3600)
        if how == "timedelta":
            raise RetryLater("no luck", delay=timedelta(hours=1))
        raise RetryLater(at=timezone.now() + timedelta(hours=1))

    run(queue.name)

    for how in ("seconds", "timedelta", "at"):
        now = waits(ends_sent(later.send(how=how)))
        assert now.retry_count == 1
        assert timedelta(minutes=59) < now.start_after - timezone.now() < timedelta(minutes=61)
        services.cancel(now.pk)


def ends_sent(one: Job | None) -> Job:
    assert one is not None
    return one


def test_retry_later_has_no_more_retries_than_others(queue, run):
    @job(queue=queue.name, retry_limit=0)
    def later() -> None:
        raise RetryLater("once more", delay=0)

    run(queue.name)

    assert "once more" in ends(later.send(), JobState.FAILED).error


def test_fail_for_good_uses_up_all_retries(queue, run):
    @job(queue=queue.name, retry_limit=5)
    def hopeless() -> None:
        raise FailForGood("wrong customer")

    run(queue.name)

    done = ends(hopeless.send(), JobState.FAILED)
    assert done.error.endswith("wrong customer")
    assert done.attempt == 1


def test_a_handler_may_cancel_its_job(queue, run):
    @job(queue=queue.name)
    def unwanted() -> None:
        raise CancelJob("the order was withdrawn")

    run(queue.name)

    done = ends(unwanted.send(), JobState.STOPPED)
    assert done.error == "the order was withdrawn"


def test_a_snooze_costs_nothing(queue, run):  # B34
    @job(queue=queue.name, retry_limit=0)
    def early() -> str:
        raise Snooze(3600)

    run(queue.name)

    now = waits(ends_sent(early.send()))
    assert (now.retry_count, now.attempt) == (0, 1)
    assert now.start_after - timezone.now() > timedelta(minutes=59)


def test_a_snoozed_job_of_a_lane_keeps_its_key(fifo_queue, run):  # B34
    ran: list[int] = []

    @job(queue=fifo_queue.name, singleton_key="k")
    def early(number: int) -> None:
        ran.append(number)
        if number == 1 and ran.count(1) == 1:
            raise Snooze(3600)

    first, second = early.send(1), early.send(2)
    run(fifo_queue.name)

    now = waits(ends_sent(first))
    assert (ran, reread(ends_sent(second)).state) == ([1], JobState.CREATED)
    services.reschedule(now.pk, timezone.now())
    ends(second)
    assert ran == [1, 1, 2]


def test_rules_say_what_is_worth_another_attempt(queue, run):
    class Passing(Exception): ...

    class Worse(Passing): ...

    @job(queue=queue.name, retries={KeyError: False, Passing: 3600, Worse: True}, retry_limit=2, retry_delay=7200)
    def judge(what: str) -> None:
        raise {"key": KeyError("x"), "passing": Passing(), "worse": Worse(), "other": OSError()}[what]

    run(queue.name)

    assert ends(judge.send("key"), JobState.FAILED).attempt == 1
    for what, seconds in (("passing", 3600), ("worse", 7200), ("other", 7200)):
        now = waits(ends_sent(judge.send(what)))
        assert abs((now.start_after - timezone.now()).total_seconds() - seconds) < 60


def test_a_job_without_a_handler_is_quarantined_with_a_text(queue, run, settings):  # F57
    settings.JOBQUEUE = {**settings.JOBQUEUE, "HANDLER_GRACE_SECONDS": 0}
    job(queue=queue.name, name="send_invoice")(lambda: None)
    run(queue.name)

    done = ends(sent(queue, name="send_invoise", retry_limit=9), JobState.FAILED)

    assert done.reason == FailureReason.NO_HANDLER
    assert done.error == "There is no handler named 'send_invoise'. Did you mean 'send_invoice'?"
    assert done.attempt == 1


def test_a_changed_signature_is_a_readable_failure(queue, run):  # F58
    @job(queue=queue.name, name="remind", retry_limit=1)
    def remind(user_id: int, channel: str) -> None: ...

    run(queue.name)

    done = ends(sent(queue, {"user_id": 1}, name="remind", retry_limit=1), JobState.FAILED)
    assert "missing 1 required positional argument: 'channel'" in done.error
    assert done.attempt == 2  # an ordinary failure: a deploy may mend it


def test_data_that_is_no_dict_is_the_only_argument(queue, run):
    @job(queue=queue.name, name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    run(queue.name)

    assert ends(sent(queue, [1, 2, 3], name="total")).output == 6


# ------------------------------------------------------------------------------------------------------------ atomic


def test_an_atomic_handler_and_its_completion_are_one_transaction(queue, run):  # B29
    @job(queue=queue.name, atomic=True)
    def make() -> str:
        assert transaction.get_connection().in_atomic_block
        Group.objects.create(name="made")
        return "done"

    run(queue.name)

    assert ends(make.send()).output == "done"
    assert Group.objects.count() == 1


def test_what_an_atomic_handler_did_before_it_failed_is_undone(queue, run):  # B29
    @job(queue=queue.name, atomic=True, retry_limit=1)
    def make() -> None:
        Group.objects.create(name="made")
        raise ValueError("no")

    run(queue.name)

    assert ends(make.send(), JobState.FAILED).attempt == 2
    assert not Group.objects.exists()


def test_an_atomic_handler_that_lost_its_claim_has_done_nothing(queue, run, gate):  # F6 G3
    @job(queue=queue.name, atomic=True)
    def make() -> None:
        Group.objects.create(name=f"{Group.objects.count()}")
        gate.wait()

    run(queue.name, concurrency=1)
    one = ends_sent(make.send())
    assert gate.reached.wait(10)

    services.mark_worker_unresponsive(reread(one).assignee)  # as if it had been silent
    [mine] = until(lambda: services.fetch(queue.name, worker="other"), "another fetches it")
    services.complete(mine, "by another")
    gate.opened.set()

    until(lambda: not Job.objects.running().exists(), "it ended")
    until(lambda: ends(make.send()), "the worker goes on")
    assert reread(one).output == "by another"
    assert [group.name for group in Group.objects.all()] == ["0"]  # of the last one only


def test_a_job_deleted_under_its_handler_harms_nobody(queue, run, gate):
    @job(queue=queue.name)
    def slow() -> None:
        gate.wait()

    run(queue.name, concurrency=1)
    one = ends_sent(slow.send())
    assert gate.reached.wait(10)

    services.purge(queue.name)
    gate.opened.set()

    assert ends(slow.send()).attempt == 1
    assert not Job.objects.filter(pk=one.pk).exists()


# ------------------------------------------------------------------------------------------------------------ AROUND

seen: list[str] = []


@contextmanager
def noting(one: Job):
    seen.append(f"before {one.data}")
    try:
        yield
    finally:
        seen.append("after")


@contextmanager
def swallowing(one: Job):
    try:
        yield
    except ValueError:
        seen.append("swallowed")


@contextmanager
def broken(one: Job):
    raise LookupError("no such tenant")
    yield


@pytest.fixture
def around():
    """Sets the hook for workers that are started inside."""
    seen.clear()

    def use(name: str):
        return override_settings(JOBQUEUE={"AROUND": f"{__name__}.{name}"})

    return use


@pytest.mark.parametrize("atomic", (False, True))
def test_one_hook_is_around_every_run(queue, run, around, atomic):
    @job(queue=queue.name, atomic=atomic)
    def plain(n: int) -> None:
        seen.append("handler")

    with around("noting"):
        run(queue.name)
        ends(plain.send(1))

    assert seen == ["before {'n': 1}", "handler", "after"]


def test_the_hook_is_around_async_handlers_too(queue, run, around):
    @job(queue=queue.name)
    async def asynchronous(n: int) -> None:
        seen.append("handler")

    with around("noting"):
        run(queue.name)
        ends(asynchronous.send(1))

    assert seen == ["before {'n': 1}", "handler", "after"]


@pytest.mark.parametrize("atomic", (False, True))
def test_a_hook_that_fails_fails_the_attempt(queue, run, around, atomic):
    @job(queue=queue.name, atomic=atomic, retry_limit=0)
    def plain() -> None:
        seen.append("handler")

    with around("broken"):
        run(queue.name)
        done = ends(plain.send(), JobState.FAILED)

    assert done.error.endswith("LookupError: no such tenant")
    assert seen == []


@pytest.mark.parametrize("atomic", (False, True))
def test_a_hook_that_swallows_an_error_leaves_the_job_neither_hanging_nor_expired(queue, run, around, atomic):
    @job(queue=queue.name, atomic=atomic, retry_limit=0)
    def plain() -> None:
        raise ValueError("swallowed")

    with around("swallowing"):
        run(queue.name)
        one = ends_sent(plain.send())
        until(lambda: reread(one).state in (JobState.COMPLETED, JobState.FAILED), "it ended")

    assert (reread(one).attempt, reread(one).reason) != (1, FailureReason.EXPIRED)
    assert seen == ["swallowed"]


def test_a_late_cancellation_of_a_failed_attempt_stops_it(queue, run, gate):
    @job(queue=queue.name)
    def fall() -> None:
        gate.wait()
        raise ValueError("no")

    run(queue.name)
    one = ends_sent(fall.send())
    assert gate.reached.wait(10)

    services.cancel(one.pk)
    gate.opened.set()

    assert ends(one, JobState.STOPPED).attempt == 1


def test_moving_the_heartbeat_back_is_answered_by_the_worker(queue, run, gate):  # R109 R106
    @job(queue=queue.name)
    def slow() -> None:
        gate.wait()

    with override_settings(JOBQUEUE={"WORKER_HEARTBEAT_SECONDS": 0.1}):
        run(queue.name)
    quick, plain = ends_sent(slow.using(heartbeat_seconds=10).send()), ends_sent(slow.send())
    assert gate.reached.wait(10)
    until(lambda: reread(plain).state == reread(quick).state == JobState.ACTIVE, "both run")

    old = timezone.now() - timedelta(seconds=5)
    rewrite(quick, heartbeat_at=old)

    until(lambda: (reread(quick).heartbeat_at or old) > old + timedelta(seconds=3), "a heartbeat is sent")
    assert reread(plain).heartbeat_at is None
    gate.opened.set()
    ends(quick)
    ends(plain)
