"""What each policy allows to wait and to run at once; strict order per key has a file of its own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import FINAL, OCCUPIED, RETRYING, FailureReason, JobState
from tests.factories import JobFactory
from tests.past import reread

from .lives import sent


def states(queue: Queue) -> list[str]:
    return sorted(Job.objects.in_queue(queue.name).values_list("state", flat=True))


# --------------------------------------------------------------------------------------------------- standard


def test_a_standard_queue_takes_any_number_of_jobs_without_a_key(queue):  # R078
    jobs = [sent(queue) for _ in range(5)]

    assert services.fetch(queue.name, 10) == jobs


def test_a_standard_queue_defers_jobs(queue):  # R078 R322
    later, now = sent(queue, delay=3600), sent(queue)

    assert services.fetch(queue.name, 10) == [now]
    assert reread(later).state == JobState.CREATED


def test_a_standard_queue_runs_higher_priorities_first(queue):  # R078 R319
    low, high, middle = (sent(queue, priority=priority) for priority in (-1, 5, 0))

    assert services.fetch(queue.name, 10) == [high, middle, low]


@pytest.mark.parametrize("state", sorted(OCCUPIED))
def test_an_unfinished_job_keeps_its_key_on_a_standard_queue(queue, state):  # R321 R346 R384 B7
    JobFactory(queue=queue, state=state, singleton_key="a")

    assert services.send(queue.name, singleton_key="a") is None
    assert services.send(queue.name, singleton_key="b") is not None
    assert services.send(queue.name) is not None


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_finished_job_gives_its_key_free_on_a_standard_queue(queue, state):  # R385
    JobFactory(queue=queue, state=state, singleton_key="a")

    assert services.send(queue.name, singleton_key="a") is not None


def test_the_same_key_in_two_standard_queues_is_two_keys(queue):  # R384
    other = services.create_queue("other")

    assert services.send(queue.name, singleton_key="a") is not None
    assert services.send(other.name, singleton_key="a") is not None


# ------------------------------------------------------------------------------------------------------ short


def test_a_short_queue_holds_one_waiting_job(short_queue):  # R079
    sent(short_queue)

    assert services.send(short_queue.name) is None
    assert states(short_queue) == ["created"]


def test_a_short_queue_runs_any_number(short_queue):  # R079
    for running in range(1, 4):
        sent(short_queue)
        assert len(services.fetch(short_queue.name)) == 1
        assert states(short_queue) == ["active"] * running


def test_a_short_queue_holds_one_waiting_job_per_key(short_queue):  # R079
    sent(short_queue, singleton_key="a")

    assert services.send(short_queue.name, singleton_key="a") is None
    assert services.send(short_queue.name, singleton_key="b") is not None
    assert services.send(short_queue.name) is not None


def test_a_retry_is_no_waiting_job_of_a_short_queue(short_queue):  # R079
    JobFactory(queue=short_queue, state=JobState.RETRY)

    assert services.send(short_queue.name) is not None


# -------------------------------------------------------------------------------------------------- singleton


def test_a_singleton_queue_runs_one_job_at_a_time(singleton_queue):  # R080
    first, second, third = (sent(singleton_queue) for _ in range(3))

    assert services.fetch(singleton_queue.name, 10) == [first]
    assert services.fetch(singleton_queue.name, 10) == []
    services.complete(first.pk)
    assert services.fetch(singleton_queue.name, 10) == [second]
    services.fail(second.pk, "boom", for_good=True)
    assert services.fetch(singleton_queue.name, 10) == [third]


def test_a_singleton_queue_runs_one_job_per_key(singleton_queue):  # R080
    a, _, b, keyless = (sent(singleton_queue, singleton_key=key) for key in ("a", "a", "b", None))

    assert services.fetch(singleton_queue.name, 10) == [a, b, keyless]


@pytest.mark.parametrize("state", (JobState.ACTIVE, JobState.CANCELLING))
def test_a_cancelled_handler_that_may_still_run_keeps_a_singleton_s_place(singleton_queue, state):  # R080
    JobFactory(queue=singleton_queue, state=state)
    sent(singleton_queue)

    assert services.fetch(singleton_queue.name) == []


def test_a_waiting_retry_lets_others_run_on_a_singleton_queue(singleton_queue):  # R080
    JobFactory(queue=singleton_queue, state=JobState.RETRY, start_after=timezone.now() + timedelta(hours=1))
    job = sent(singleton_queue)

    assert services.fetch(singleton_queue.name) == [job]


def test_the_highest_priority_goes_next_on_a_singleton_queue(singleton_queue):  # R080 R319
    first, low, high = (sent(singleton_queue, priority=priority) for priority in (9, 1, 5))
    assert services.fetch(singleton_queue.name, 10) == [first]
    assert services.fetch(singleton_queue.name, 10) == []

    services.complete(first.pk)

    assert services.fetch(singleton_queue.name, 10) == [high]
    services.complete(high.pk)
    assert services.fetch(singleton_queue.name, 10) == [low]


def test_the_highest_priority_of_a_batch_goes_first_on_a_singleton_queue(singleton_queue):  # R080 R319
    services.send_many(singleton_queue.name, [{"priority": priority} for priority in (1, 9, 5)])

    for priority in (9, 5, 1):
        (job,) = services.fetch(singleton_queue.name, 10)
        assert job.priority == priority
        services.complete(job)


@pytest.mark.django_db(transaction=True)
def test_racing_workers_start_one_job_of_a_singleton_queue(singleton_queue, race):  # R080 R379
    for _ in range(6):
        sent(singleton_queue)

    claims = race(6, lambda: services.fetch(singleton_queue.name))

    assert sum(map(len, claims)) == 1


# ---------------------------------------------------------------------------------------------------- stately


def test_a_stately_queue_holds_one_job_per_state(stately_queue):  # R081
    first = sent(stately_queue)
    assert services.send(stately_queue.name) is None

    assert services.fetch(stately_queue.name, 10) == [first]
    second = sent(stately_queue)
    assert services.send(stately_queue.name) is None
    assert services.fetch(stately_queue.name, 10) == []
    assert states(stately_queue) == ["active", "created"]

    services.complete(first.pk)
    assert services.fetch(stately_queue.name, 10) == [second]


def test_a_stately_queue_holds_one_job_per_state_and_key(stately_queue):  # R081
    a = sent(stately_queue, singleton_key="a")

    assert services.send(stately_queue.name, singleton_key="a") is None
    b = sent(stately_queue, singleton_key="b")
    assert services.fetch(stately_queue.name, 10) == [a, b]


@pytest.mark.parametrize("retrying", sorted(RETRYING))
def test_a_stately_job_fails_at_once_when_another_waits_for_its_retry(stately_queue, retrying):  # R090
    waiting = JobFactory(queue=stately_queue, state=retrying, start_after=timezone.now() + timedelta(hours=1))
    sent(stately_queue)
    (job,) = services.fetch(stately_queue.name)

    failure = services.fail(job, "boom")

    assert (failure.state, failure.will_retry, failure.next_retry_at) == (JobState.FAILED, False, None)
    assert reread(job).reason == FailureReason.RETRY_TAKEN
    assert reread(job).retry_count == 0
    assert reread(waiting).state == retrying


def test_a_stately_job_retries_when_no_other_does(stately_queue):  # R090
    JobFactory(queue=stately_queue, state=JobState.RETRY, singleton_key="other")
    sent(stately_queue, priority=1)
    (job,) = services.fetch(stately_queue.name)

    assert services.fail(job, "boom").state == JobState.RETRY


@pytest.mark.parametrize("end", ("expire", "heartbeat", "unresponsive", "give_back"))
def test_no_way_leads_to_two_stately_retries(stately_queue, end):  # R090
    JobFactory(queue=stately_queue, state=JobState.RETRY, start_after=timezone.now() + timedelta(hours=1))
    past = timezone.now() - timedelta(hours=1)
    job = JobFactory(
        queue=stately_queue, state=JobState.ACTIVE, expire_at=past if end == "expire" else timezone.now() + timedelta(1)
    )
    if end == "heartbeat":
        Job.objects.filter(pk=job.pk).update(heartbeat_seconds=10, heartbeat_at=past)

    {
        "expire": services.expire,
        "heartbeat": services.recover_lost,
        "unresponsive": lambda: services.mark_worker_unresponsive(job.assignee),
        "give_back": lambda: services.give_back(job, "stopping"),
    }[end]()

    assert states(stately_queue) == ["failed", "retry"]


# -------------------------------------------------------------------------------------------------- exclusive


@pytest.mark.parametrize("state", sorted(OCCUPIED))
def test_an_exclusive_queue_holds_one_unfinished_job(exclusive_queue, state):  # R082
    JobFactory(queue=exclusive_queue, state=state)

    assert services.send(exclusive_queue.name) is None
    assert len(states(exclusive_queue)) == 1


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_exclusive_queue_takes_the_next_when_one_has_ended(exclusive_queue, state):  # R082
    JobFactory(queue=exclusive_queue, state=state)

    assert services.send(exclusive_queue.name) is not None


def test_an_exclusive_queue_holds_one_unfinished_job_per_key(exclusive_queue):  # R082
    sent(exclusive_queue, singleton_key="a")

    assert services.send(exclusive_queue.name, singleton_key="a") is None
    assert services.send(exclusive_queue.name, singleton_key="b") is not None
    assert services.send(exclusive_queue.name) is not None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ("short", "exclusive", "stately"))
def test_of_racing_sends_to_one_place_one_is_stored(db, policy, race):  # R079 R081 R082
    services.create_queue("q", policy=policy)

    answers = race(6, lambda: services.send("q"))

    assert sum(answer is not None for answer in answers) == 1
    assert Job.objects.in_queue("q").count() == 1


def test_a_batch_that_needs_a_taken_place_is_refused_whole(exclusive_queue):  # B15 B32
    sent(exclusive_queue, singleton_key="b")

    with pytest.raises(DuplicateJob, match=r"items\[1\]"):
        services.send_many(exclusive_queue.name, [{"singleton_key": "a"}, {"singleton_key": "b"}])
    assert Job.objects.count() == 1


@pytest.mark.parametrize("name", ("queue", "exclusive_queue", "stately_queue"))
def test_a_dead_job_whose_place_is_taken_stays_dead(request, name):  # B31
    queue = request.getfixturevalue(name)
    dead = JobFactory(queue=queue, state=JobState.FAILED, singleton_key="a")
    free = JobFactory(queue=queue, state=JobState.FAILED, singleton_key="b")
    holder = JobFactory(queue=queue, state=JobState.RETRY, singleton_key="a")

    outcome = services.retry([dead, free])

    assert outcome.moved == [free.pk]
    assert list(outcome.refused) == [dead.pk]
    assert str(holder.pk) in outcome.refused[dead.pk]
    assert (reread(dead).state, reread(free).state) == (JobState.FAILED, JobState.RETRY)
