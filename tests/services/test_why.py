"""Why a job is not running, in a sentence."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Queue, Worker
from django_jobqueue.states import BLOCKING, DEAD, FINAL, RETRYING, RUNNING, Hold, JobState
from tests.factories import ERROR, WORKER, JobFactory
from tests.past import ago, rewrite
from tests.test_plans import explained

from .lives import sent

pytestmark = pytest.mark.django_db


@pytest.fixture
def worker(db: None) -> Worker:
    return Worker.objects.create(name="w")


@pytest.mark.parametrize("state", sorted(RUNNING))
def test_a_running_job_says_who_has_it(queue, state):
    job = JobFactory(queue=queue, state=state)

    text = services.why(job)

    assert text.startswith(f"It is running: worker '{WORKER}' has held attempt 1 since ")
    assert ("cancellation" in text) == (state == JobState.CANCELLING)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_ended_job_says_how_and_when(queue, state):
    job = JobFactory(queue=queue, state=state)

    text = services.why(job.pk)

    assert text.startswith(f"It has ended: {JobState(state).label} at 2")
    assert (ERROR in text) == (state in DEAD)
    assert "blocks the key" not in text


@pytest.mark.parametrize("state", sorted(DEAD))
def test_a_dead_ordered_job_says_what_it_blocks(fifo_queue, state):
    job = JobFactory(queue=fifo_queue, state=state, singleton_key="a")

    assert "It blocks the key 'a' until an operator retries or skips it." in services.why(job)


def test_a_paused_queue_is_named(queue, worker):
    job = sent(queue)
    services.pause(queue.name)

    assert services.why(job).startswith(f"The queue '{queue.name}' has been paused since 2")


@pytest.mark.parametrize(
    ("operator", "reason", "said"),
    (("ann", "on fire.", ", by 'ann': on fire."), ("ann", "", ", by 'ann'."), ("", "on fire", ": on fire.")),
)
def test_who_paused_the_queue_is_named_and_why(queue, worker, operator, reason, said):
    job = sent(queue)
    services.pause(queue.name, operator="dana")
    services.resume(queue.name)
    services.pause(queue.name, operator=operator, reason=reason)

    assert services.why(job).endswith(said)


@pytest.mark.parametrize("state", sorted(BLOCKING))
def test_the_job_that_blocks_the_key_is_named(fifo_queue, worker, state):
    blocker = JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    job = sent(fifo_queue, singleton_key="a")

    text = services.why(job)

    assert text.startswith(f"The key 'a' is blocked by job #{blocker.seq}. ")
    if state in DEAD:
        assert ERROR in text
        assert "retry it or skip it" in text
    elif state in RUNNING:
        assert "That job has been running since" in text
    else:
        assert "That job waits for its next attempt, which is due at" in text


def test_an_earlier_job_of_the_key_is_named(fifo_queue, worker):
    first, _, third = (sent(fifo_queue, singleton_key="a") for _ in range(3))

    text = services.why(third)

    assert "2 earlier jobs" in text
    assert f"the next is job #{first.seq}." in text


def test_a_delayed_job_of_the_key_is_named_only_where_it_blocks(fifo_queue, worker):  # B18
    delayed, job = sent(fifo_queue, singleton_key="a", delay=60), sent(fifo_queue, singleton_key="a")

    assert f"#{delayed.seq}." not in services.why(job)
    services.update_queue(fifo_queue.name, delayed_head="block")
    assert f"#{delayed.seq}." in services.why(job)


@pytest.mark.parametrize("name", ("singleton_queue", "stately_queue"))
def test_the_job_that_has_the_policy_s_place_is_named(request, worker, name):
    queue: Queue = request.getfixturevalue(name)
    running = JobFactory(queue=queue, state=JobState.ACTIVE)
    job = JobFactory(queue=queue, hold=Hold.LANE)

    assert services.why(job).startswith(
        f"The queue '{queue.name}' is blocked by job #{running.seq}. That job has been running"
    )


def test_a_job_that_waits_for_its_time_says_until_when(queue, worker):
    when = timezone.now() + timedelta(days=1)
    job = sent(queue, start_after=when)

    assert services.why(job) == f"It waits until {timezone.localtime(when):%Y-%m-%d %H:%M:%S %Z} for its start."


@pytest.mark.parametrize("state", sorted(RETRYING))
def test_a_job_that_waits_for_its_retry_says_until_when(queue, worker, state):
    job = JobFactory(queue=queue, state=state, start_after=timezone.now() + timedelta(days=1))

    assert services.why(job).endswith("for its next attempt.")


def test_a_queue_without_workers_is_named(queue):
    Worker.objects.create(name="gone", stopped_at=timezone.now())
    Worker.objects.create(name="silent", heartbeat_at=ago(hours=1))
    Worker.objects.create(name="elsewhere", queues=["other"])

    assert services.why(sent(queue)) == f"No live worker takes jobs of the queue '{queue.name}'."


def test_tags_that_no_worker_takes_are_named(queue):
    Worker.objects.create(name="w", queues=[queue.name], tags=["eu", "gpu"])

    assert services.why(sent(queue, tags=["eu"])) == "No live worker takes jobs with its tags (eu)."
    assert services.why(sent(queue)) == "No live worker takes jobs with its tags (none)."
    assert services.why(sent(queue, tags=["gpu", "eu"], priority=1)).startswith("Nothing holds it")


def test_the_next_job_is_told_so(queue, worker):
    job = sent(queue)

    assert services.why(job) == "Nothing holds it: it is the next to be fetched."


def test_a_job_is_told_its_place(queue, worker):
    sent(queue, priority=1), sent(queue), sent(queue, delay=60)

    assert services.why(sent(queue)) == "Nothing holds it: 2 jobs are fetched before it."


def test_one_job_is_not_called_jobs(fifo_queue, queue, worker):
    _, second = sent(fifo_queue, singleton_key="a"), sent(fifo_queue, singleton_key="a")
    sent(queue)

    assert "1 earlier job;" in services.why(second)
    assert services.why(sent(queue)) == "Nothing holds it: 1 job is fetched before it."


def test_a_job_of_a_queue_that_is_gone_says_so(queue, worker):
    job = sent(queue)
    Queue.objects.filter(pk=queue.name)._raw_delete("default")

    assert services.why(job) == f"Its queue '{queue.name}' does not exist any more."


def test_a_job_that_does_not_exist_is_an_error(db):
    with pytest.raises(JobNotFound):
        services.why(uuid7())


def test_a_job_whose_time_has_come_is_not_told_to_wait(queue, worker):
    job = sent(queue, delay=60)
    rewrite(job, start_after=ago(seconds=1))

    assert services.why(job) == "Nothing holds it: it is the next to be fetched."


def test_why_changes_nothing(fifo_queue, django_assert_max_num_queries):
    job = sent(fifo_queue, singleton_key="a")
    before = type(job).objects.filter(pk=job.pk).values().get()

    with django_assert_max_num_queries(10):
        services.why(job)

    assert type(job).objects.filter(pk=job.pk).values().get() == before


def test_where_no_worker_is_known_one_is_told_how_to_start_one(queue):
    text = services.why(sent(queue))

    assert text == "No worker is running, and none was running recently: start one with manage.py runjobs."


def test_a_handler_that_this_code_does_not_have_is_named_to_those_who_know_their_handlers(queue, worker):
    named, unnamed = sent(queue, name="shop.gone"), sent(queue, priority=1)

    assert services.why(named).startswith("Nothing holds it")
    assert "no handler named 'shop.gone'" in services.why(named, find_handler=lambda queue, name: None)
    assert "names no handler" in services.why(unnamed, find_handler=lambda queue, name: None)
    assert services.why(unnamed, find_handler=lambda queue, name: object()).startswith("Nothing holds it")


def test_a_handler_that_no_live_worker_has_is_named(queue, worker):  # F57
    job = sent(queue, name="shop.new")
    Worker.objects.update(handlers=["shop.old"])

    told = services.why(job)
    Worker.objects.create(name="new", queues=[queue.name], handlers=["shop.new"])

    assert told.startswith("No live worker has a handler named 'shop.new'; worker ")
    assert told.endswith(" lacks it.")
    assert services.why(job).startswith("Nothing holds it")


@pytest.mark.usefixtures("untouched_table")
@pytest.mark.parametrize(
    ("name", "index"),
    (
        ("queue", "jobqueue_job_fetchable"),
        ("fifo_queue", "jobqueue_job_one_blocker_per_key"),
        ("singleton_queue", "jobqueue_job_singleton_one_running"),
        ("stately_queue", "jobqueue_job_stately_one_running"),
    ),
)
def test_why_reads_along_indexes_without_statistics(request, worker, name, index):
    queue: Queue = request.getfixturevalue(name)
    job = sent(queue, singleton_key="a")

    with explained() as plans:
        services.why(job)

    assert index in plans.indexes
    assert plans.sequential == []


@pytest.mark.usefixtures("untouched_table")
@pytest.mark.parametrize("state", sorted(RUNNING | RETRYING | DEAD))
def test_a_job_is_told_what_readers_by_group_take_first(queue, worker, state):  # R067
    other = JobFactory(queue=queue, group_key="A", state=state)
    job = sent(queue, group_key="A")

    with explained() as plans:
        text = services.why(job)

    assert text.startswith("Nothing holds it")
    assert f"But grouped reads take job #{other.seq} of the group 'A' first. That job" in text
    assert plans.sequential == []
    assert {"jobqueue_job_group_running", "jobqueue_job_group"} & plans.indexes


def test_a_job_that_is_first_of_its_group_is_told_of_nobody(queue, worker):
    first, second = sent(queue, group_key="A"), sent(queue, group_key="A")

    assert "group" not in services.why(first)
    assert services.why(second).endswith(f"take job #{first.seq} of the group 'A' first. That job is waiting too.")


def test_a_running_job_of_its_group_goes_before_even_if_it_was_sent_later(queue, worker):  # R036
    job = sent(queue, group_key="A")
    other = JobFactory(queue=queue, group_key="A", state=JobState.ACTIVE)

    assert f"take job #{other.seq} of the group 'A' first. That job has been running" in services.why(job)
