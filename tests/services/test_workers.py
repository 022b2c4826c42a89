"""What a worker process writes about itself and about the jobs it holds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_jobqueue import services
from django_jobqueue.engine import workers
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job, Maintenance, Queue, Worker

from ..past import ago
from .lives import now, refused, sent


def registered(name: str) -> Worker:
    worker = Worker(name=name)
    workers.register(worker, using="default")
    return worker


def claimed_by(worker: Worker, queue: Queue, number: int = 1, **options: Any) -> list[Job]:
    for _ in range(number):
        sent(queue, **options)
    return services.fetch(queue.name, number, worker=worker.name, incarnation=worker.pk)


@pytest.mark.parametrize("name", ("", None, 5, b"w", "x" * 256, "nul\0", "\ud800", ["w"]), ids=ascii)
@pytest.mark.django_db
def test_whom_to_stop_must_be_named(name):
    with refused(InvalidOption):
        services.stop_worker(name)


@pytest.mark.django_db
def test_all_processes_of_a_worker_are_asked_to_stop_and_no_others():
    one, other, alone, similar = (registered(name) for name in ("w/1", "w/2", "w", "w2"))

    assert services.stop_worker("w") == 3
    assert services.stop_worker("w") == 0  # they know already

    found = workers.beat({one.pk: "{}", other.pk: "{}", alone.pk: "{}", similar.pk: "{}"}, using="default")
    assert found.stopping == {one.pk, other.pk, alone.pk}


@pytest.mark.django_db
def test_a_process_that_was_given_up_is_not_renewed():  # G3
    worker = registered("w")
    workers.has_ended(worker.pk, "died", using="default")

    assert workers.beat({worker.pk: "{}"}, using="default").alive == set()


@pytest.mark.django_db
def test_to_register_twice_is_harmless():
    worker = registered("w")
    workers.register(Worker(pk=worker.pk, name="w"), using="default")

    assert Worker.objects.count() == 1


def test_only_what_is_not_held_is_given_back_and_uncharged(queue):  # B34
    worker = registered("w")
    held, lost = claimed_by(worker, queue, 2)
    (other,) = claimed_by(registered("w"), queue)  # of the same name, but another process

    assert workers.give_back_unheld("w", worker.pk, [held], "not confirmed", using="default") == 1
    assert [now(job).state for job in (held, lost, other)] == ["active", "retry", "active"]
    assert (now(lost).retry_count, now(lost).error) == (0, "not confirmed")


def running(job: Job) -> workers.Running:
    assert job.held_number is not None
    return workers.Running(job.pk, job.held_number)


def test_of_a_dead_process_only_what_ran_is_charged(queue):  # G8 B11
    worker = registered("w")
    ran, overdue, waited, cancelled = claimed_by(worker, queue, 4)
    services.cancel([cancelled.pk])

    taken = workers.recover_dead(
        "w", worker.pk, "died (signal 9)", crashed=[running(ran)], overdue=[running(overdue)], using="default"
    )

    assert taken == 4
    assert [now(job).state for job in (ran, overdue, waited, cancelled)] == [
        "unknown_retry", "retry", "retry", "stopped"
    ]  # fmt: skip
    assert [now(job).retry_count for job in (ran, overdue, waited)] == [1, 1, 0]
    assert [now(job).crashes for job in (ran, overdue, waited)] == [1, 0, 0]
    assert now(ran).error == "Worker w died (signal 9), attempt 1."
    assert now(overdue).reason == "expired"
    worker.refresh_from_db()
    assert worker.exit_text == "died (signal 9)"
    assert worker.stopped_at is not None


def test_progress_is_written_only_for_a_claim_that_stands(queue):  # I7
    worker = registered("w")
    mine, lost = claimed_by(worker, queue, 2)
    services.give_back(lost, "not now")

    workers.report_progress([(mine, 0.5, "half"), (lost, 0.9, "late")], using="default")

    assert (now(mine).progress, now(mine).progress_text) == (0.5, "half")
    assert now(lost).progress is None


def test_a_lost_lock_counts_only_once_it_is_silent(queue, settings):  # G4
    settings.JOBQUEUE = {"WORKER_UNLOCKED_SECONDS": 13.0, "WORKER_LOST_SECONDS": 27.0}
    with_lock, without, unknown = (Worker(name=name, has_session_lock=name != "u") for name in ("l", "w", "u"))
    for worker in (with_lock, without, unknown):
        workers.register(worker, using="default")
    workers.take_session_locks([with_lock.pk], using="default")

    def gone(seconds: int) -> set[UUID]:
        Worker.objects.update(stopped_at=None, heartbeat_at=ago(seconds=seconds))
        services.recover_lost()
        return set(Worker.objects.exclude(stopped_at=None).values_list("pk", flat=True))

    assert gone(10) == set()
    assert gone(20) == {without.pk}
    assert gone(30) == {with_lock.pk, without.pk, unknown.pk}
    workers.drop_session_lock(with_lock.pk, using="default")


@pytest.mark.django_db
def test_a_promotion_is_first_seen_by_one_worker_and_then_known_to_all():  # F73
    assert workers.seconds_on_timeline(using="default") == float("inf")  # the first one ever seen is no promotion
    assert workers.seconds_on_timeline(using="default") == float("inf")

    Maintenance.objects.update(timeline="FFFFFFFF")  # what the row has when a standby of that primary was promoted

    first = workers.seconds_on_timeline(using="default")
    assert 0 <= first <= workers.seconds_on_timeline(using="default") < 60
    Maintenance.objects.update(timeline_at=ago(seconds=100))
    assert workers.seconds_on_timeline(using="default") >= 100
