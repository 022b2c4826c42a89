"""The audit finds breaches of the order that were planted, and nothing else in a history of real races."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.models import Job, Queue
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import rewrite

SENDERS, WORKERS, KEYS, SENDS = 3, 3, 5, 40


def audit(spark, lake=None, **options: Any):
    from django_jobqueue.pipeline import audit_order

    return audit_order(spark=spark, lake=lake, **options)


@pytest.fixture
def fifo() -> Queue:
    return services.create_fifo_queue("orders")


def seconds(number):
    return timedelta(seconds=number)


def ran(queue, key, *, at, until, seq_of=None, **columns: Any) -> Job:
    """A job that ran from then to then, on a clock that began with the first job; sent in the order of the calls."""
    job = JobFactory(queue=queue, singleton_key=key, state=JobState.COMPLETED, **columns)
    begin = job.created_at + seconds(at)
    return rewrite(
        job,
        started_at=columns.get("started_at") or begin,
        assigned_at=begin,
        finalized_at=job.created_at + seconds(until),
        claim_xmin=job.sent_xid + 1_000,
    )


def kinds(found):
    return [(one["kind"], one["first_id"], one["second_id"]) for one in found.breaches]


# Each plants something under a key of its own and returns the breach that must be found, if any. -----------------

Planted = tuple[str, Job, Job] | None


def fine(queue) -> Planted:
    ran(queue, "fine", at=10, until=20), ran(queue, "fine", at=20, until=30)
    return None


def overlap(queue) -> Planted:
    return "overlap", ran(queue, "overlap", at=10, until=20), ran(queue, "overlap", at=19, until=30)


def overlap_with_a_failed_attempt(queue) -> Planted:
    first = ran(queue, "failed attempt", at=30, until=40)
    started, ended = first.created_at + seconds(10), first.created_at + seconds(20)
    entry = {"attempt": 1, "started": started.isoformat(), "ended": ended.isoformat(), "outcome": "error"}
    rewrite(first, started_at=started, attempt=2, attempts=[entry])
    return "overlap", first, ran(queue, "failed attempt", at=15, until=18)


def begun_while_another_waited_for_its_retry(queue) -> Planted:
    first = ran(queue, "retry", at=30, until=40)
    rewrite(first, started_at=first.created_at + seconds(10))
    return "interruption", first, ran(queue, "retry", at=22, until=25)


def begun_behind_a_failed_one(queue) -> Planted:
    first = JobFactory(queue=queue, singleton_key="failed", state=JobState.FAILED, attempts=[])
    return "interruption", first, ran(queue, "failed", at=60, until=70)


def swap(queue) -> Planted:
    return "overtaking", ran(queue, "swap", at=30, until=40), ran(queue, "swap", at=10, until=20)


def never_begun(queue) -> Planted:
    return "overtaking", JobFactory(queue=queue, singleton_key="waits"), ran(queue, "waits", at=10, until=20)


def late_start(queue) -> Planted:
    """It was due long before the later one began."""
    first = ran(queue, "late start", at=300, until=310)
    rewrite(first, first_start_after=first.created_at + seconds(60))
    return "overtaking", first, ran(queue, "late start", at=200, until=210)


def committed_late(queue) -> Planted:
    """It was sent by a transaction that was still under way when the later one was claimed."""
    invisible, before = ran(queue, "late commit", at=30, until=40), ran(queue, "late commit", at=10, until=20)
    rewrite(before, claim_xmin=invisible.sent_xid)
    return None


def delayed(queue) -> Planted:
    first, _ = ran(queue, "delayed", at=300, until=310), ran(queue, "delayed", at=10, until=20)
    rewrite(first, first_start_after=first.created_at + seconds(60))
    return None


def cancelled(queue) -> Planted:
    first = JobFactory(queue=queue, singleton_key="cancelled", state=JobState.CANCELLED)
    ran(queue, "cancelled", at=30, until=40)
    rewrite(first, finalized_at=first.created_at + seconds(5))
    return None


def one_running_overlap(_) -> Planted:
    queue = QueueFactory(policy=QueuePolicy.SINGLETON)
    return "overlap", ran(queue, "a", at=30, until=40), ran(queue, "a", at=35, until=50)


def one_running_in_any_order(_) -> Planted:
    queue = QueueFactory(policy=QueuePolicy.SINGLETON)
    ran(queue, "b", at=30, until=40), ran(queue, "b", at=10, until=20)
    return None


def bound_by_nothing(_) -> Planted:
    queue = QueueFactory()
    ran(queue, "", at=10, until=20), ran(queue, "", at=10, until=20)
    return None


SCENES = (
    fine, overlap, overlap_with_a_failed_attempt, begun_while_another_waited_for_its_retry, begun_behind_a_failed_one,
    swap, never_begun, late_start, committed_late, delayed, cancelled, one_running_overlap, one_running_in_any_order,
    bound_by_nothing,
)  # fmt: skip


def test_what_was_planted_is_found_and_nothing_else(spark, fifo):
    planted = [found for scene in SCENES if (found := scene(fifo))]

    found = audit(spark)

    assert sorted(kinds(found)) == sorted((kind, str(first.pk), str(second.pk)) for kind, first, second in planted)
    assert found.number == 8
    assert (found.jobs, found.keys) == (2 * (len(SCENES) - 1), len(SCENES) - 1)  # one of them is of no lane


def test_one_queue_may_be_chosen(spark, fifo):
    other = services.create_fifo_queue("other")
    for queue in (fifo, other):
        ran(queue, "a", at=30, until=40), ran(queue, "a", at=10, until=20)

    found = audit(spark, queue="other")

    assert (found.jobs, [one["queue"] for one in found.breaches]) == (2, ["other"])


def test_a_breach_between_the_lake_and_the_live_table_is_found(spark, lake, fifo):
    """Also a job that is in both counts once, as it is now."""
    from django_jobqueue.pipeline import archive_jobs

    first, second = ran(fifo, "a", at=30, until=40), ran(fifo, "a", at=10, until=20)
    Job.objects.filter(pk=second.pk).update(finalized_at=second.created_at - timedelta(days=9))

    def keep(progress):
        if progress.stage == "verified":
            Job.objects.filter(pk=second.pk).update(finalized_at=second.finalized_at)

    archive_jobs(spark=spark, lake=lake, tell=keep)
    assert Job.objects.count() == 2

    found = audit(spark, lake)
    assert (found.jobs, kinds(found)) == (2, [("overtaking", str(first.pk), str(second.pk))])

    Job.objects.filter(pk=second.pk).delete()
    assert audit(spark, lake).number == 1


def test_nothing_is_found_in_a_history_of_races(spark, lake, fifo, race):
    """Senders with open transactions and rollbacks, workers that complete, fail and give back; half of it archived."""
    from django_jobqueue.pipeline import archive_jobs

    def send():
        choose = random.Random(connection.connection.info.backend_pid)
        for number in range(SENDS):
            try:
                with transaction.atomic():
                    for _ in range(choose.randint(1, 3)):
                        delay = choose.choice([None, None, None, 0.05])
                        services.send("orders", number, singleton_key=str(choose.randrange(KEYS)), delay=delay)
                    if choose.random() < 0.2:
                        raise RuntimeError
            except RuntimeError:
                pass
        return 0

    sending = {"now": True}

    def work():
        choose = random.Random(connection.connection.info.backend_pid)
        done = idle = 0
        while sending["now"] or idle < 20:
            jobs = services.fetch("orders", limit=3)
            idle = 0 if jobs else idle + 1
            for job in jobs:
                done += 1
                match choose.randrange(10):
                    case 0:
                        services.give_back(job, "another time")
                    case 1:
                        services.fail(job, "no luck", retry_after=0)
                    case _:
                        finished = services.finish_many([(job, None)], hand_over=True)
                        for following in finished.next:
                            services.complete(following)
        return done

    def send_and_say():
        try:
            return send()
        finally:
            left.append(1)
            sending["now"] = len(left) < SENDERS

    left: list[int] = []
    race(SENDERS + WORKERS, *[send_and_say] * SENDERS, *[work] * WORKERS)
    before = Job.objects.count()
    archive_jobs(spark=spark, lake=lake, older_than=0)
    assert 0 < Job.objects.count() < before or not Job.objects.exists()

    found = audit(spark, lake)

    assert found.jobs == before > SENDS
    assert found.keys == KEYS
    assert found.breaches == []
