"""Workers that vanished, and a start after all of them were stopped."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job
from django_jobqueue.states import RUNNING, JobState

from .lives import check_lawful, claimed, holds, job_in, now, refused, rolled_back, sent, snapshot

TAKE_BACK = {"mark": lambda: services.mark_worker_unresponsive("ann"), "reset": services.reset_running}


@pytest.mark.parametrize("worker", ("", None, 5, "nul \0", "x" * 256))
def test_a_worker_has_a_name(db, worker):  # R284 R315
    with refused(InvalidOption) as caught:
        services.mark_worker_unresponsive(worker)

    assert caught.value.option == "worker"


@pytest.mark.parametrize("how", TAKE_BACK)
def test_running_jobs_go_back_without_a_charge(queue, how):  # R171 R285 R299 B11 I4
    job = claimed(queue, worker="ann")

    assert TAKE_BACK[how]() == {queue.name: 1}

    stored = now(job)
    assert (stored.state, stored.retry_count, stored.last_retry_at, stored.crashes) == ("unknown_retry", 0, None, 0)
    check_lawful(job)
    assert services.fetch(queue.name) == [job]


@pytest.mark.parametrize("how", TAKE_BACK)
def test_jobs_being_cancelled_end_as_unknown(queue, how):  # R173 R286 R300 I4
    job = job_in(JobState.CANCELLING, queue, worker="ann")

    assert TAKE_BACK[how]() == {queue.name: 1}

    assert now(job).state == "unknown_stopped"
    check_lawful(job)
    assert services.fetch(queue.name) == []


@pytest.mark.parametrize("how", TAKE_BACK)
def test_who_had_a_job_is_kept_and_capacity_freed(queue, how):  # R162 R163 R287 R288 R301 I5
    jobs = [claimed(queue, worker="ann"), job_in(JobState.CANCELLING, queue, worker="ann")]

    TAKE_BACK[how]()

    assert [(now(job).assignee, now(job).assigned_at) for job in jobs] == [("ann", job.assigned_at) for job in jobs]
    assert holds("ann") == set()


@pytest.mark.parametrize("how", TAKE_BACK)
@pytest.mark.parametrize("state", sorted(set(JobState) - RUNNING))
def test_what_does_not_run_is_left_alone(queue, how, state):  # R164 R285 R299
    job_in(state, queue, worker="ann")
    before = snapshot()

    assert TAKE_BACK[how]() == {}

    assert snapshot() == before


@pytest.mark.parametrize("how", TAKE_BACK)
def test_nothing_to_take_back_is_no_error(queue, how):  # R289 R303
    before = snapshot()

    assert TAKE_BACK[how]() == {}

    assert snapshot() == before


def test_jobs_of_other_workers_are_left_alone(queue):  # R134 R285
    other = claimed(queue, worker="Ann")
    mine = claimed(queue, worker="ann")

    services.mark_worker_unresponsive("ann")

    assert (now(other).state, now(mine).state) == ("active", "unknown_retry")


def test_a_reset_of_one_queue_leaves_the_others(queue, short_queue):  # R299
    here, there = claimed(queue), claimed(short_queue)

    assert services.reset_running(queue.name) == {queue.name: 1}

    assert (now(here).state, now(there).state) == ("unknown_retry", "active")


def test_a_late_result_of_the_vanished_worker_is_accepted(queue):  # R171 R244
    job = claimed(queue, worker="ann")
    services.mark_worker_unresponsive("ann")

    services.complete(job, "late")

    assert (now(job).state, now(job).output) == ("completed", "late")


@pytest.mark.parametrize("how", TAKE_BACK)
def test_a_key_stays_with_the_job_that_was_taken_back(fifo_queue, how):  # R171
    job = claimed(fifo_queue, singleton_key="k", worker="ann")
    sent(fifo_queue, singleton_key="k")

    TAKE_BACK[how]()

    assert services.fetch(fifo_queue.name, 10) == [job]


@pytest.mark.parametrize("how", TAKE_BACK)
def test_many_are_taken_back_by_as_many_statements_as_few(queue, how):  # R290
    def statements(n: int) -> int:
        services.send_many(queue.name, [{}] * n)
        assert len(services.fetch(queue.name, n, worker="ann")) == n
        with CaptureQueriesContext(connection) as captured:
            assert TAKE_BACK[how]() == {queue.name: n}
        services.purge(queue.name)
        return len(captured)

    assert statements(2) == statements(150)


def test_the_jobs_of_a_worker_are_found_by_an_index(queue):  # R290
    claimed(queue, worker="ann")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'jobqueue_job_running'::regclass"
        )
        leaves = {name for (name,) in cursor.fetchall()}
        cursor.execute("SET LOCAL enable_seqscan = off")

    plan = Job.objects.running().assigned_to("ann").order_by().explain()

    assert any(name in plan for name in leaves), plan


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", TAKE_BACK)
def test_all_jobs_are_taken_back_in_one_transaction(queue, short_queue, how):  # R302 R267
    services.send_many(queue.name, [{}] * 600)
    services.fetch(queue.name, 600, worker="ann")
    claimed(short_queue, worker="ann")

    assert TAKE_BACK[how]() == {queue.name: 600, short_queue.name: 1}

    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT xmin::text, state FROM jobqueue_job")
        found = cursor.fetchall()
    assert [state for _, state in found] == ["unknown_retry"]


@pytest.mark.django_db(transaction=True)
def test_a_reset_is_taken_back_with_the_callers_transaction(queue):  # R302
    job = claimed(queue)

    with rolled_back():
        services.reset_running()

    assert now(job).state == "active"


@pytest.mark.django_db(transaction=True)
def test_two_resets_at_once_take_every_job_back_once(queue, race):  # R133 R302
    services.send_many(queue.name, [{}] * 50)
    services.fetch(queue.name, 50, worker="ann")

    counts = race(4, services.reset_running)

    assert sum(count.get(queue.name, 0) for count in counts) == 50
    assert {len(job.attempts) for job in Job.objects.all()} == {1}
