"""Which jobs a worker with tags takes."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import ELIGIBLE, JobState

from .lives import job_in, now, sent

QUEUES = ("queue", "fifo_queue", "singleton_queue")


@pytest.fixture(params=QUEUES)
def any_queue(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("of_job", "of_worker", "taken"),
    (
        (["a", "b"], ["a", "b"], True),  # R138
        (["a", "b"], ["b", "a"], True),  # R141
        (["a", "b", "c"], ["a", "b"], True),  # R142
        (["a"], ["a", "b"], False),  # R143
        ([], ["a"], False),  # R143
        (["A"], ["a"], False),  # R140
        (["a"], ["A"], False),  # R140
        (["a"], [], True),  # R139
        ([], [], True),  # R139
        (["a"], None, True),  # R139
        (["a b"], ["a"], False),
        (["é"], ["é"], True),
        (["a,b"], ["a", "b"], False),
        (['{"x"}'], ['{"x"}'], True),
        (["%"], ["a"], False),
    ),
)
def test_a_worker_takes_what_has_all_its_tags(any_queue, of_job, of_worker, taken):  # R138 R139 R140 R141 R142 R143
    job = sent(any_queue, tags=of_job, singleton_key="k")

    fetched = services.fetch(any_queue.name, tags=of_worker)

    assert fetched == ([job] if taken else [])
    assert now(job).state == ("active" if taken else "created")


def test_tags_are_kept_in_their_order_each_once(queue):  # R137 R154
    assert now(sent(queue, tags=["b", "a", "b"])).tags == ["b", "a"]
    assert now(sent(queue)).tags == []


def test_jobs_with_other_tags_in_front_do_not_hide_those_behind(any_queue):  # R138
    services.send_many(any_queue.name, [{"tags": ["blue"], "singleton_key": f"b{n}"} for n in range(300)])
    red = [sent(any_queue, tags=["red"], singleton_key=f"r{n}") for n in range(3)]

    assert services.fetch(any_queue.name, 10, tags=["red"]) == red


def test_jobs_in_front_and_behind_are_each_taken_once(any_queue):  # R138
    """A look along the queue finds the first, a look along the tags the last, and the first again."""
    first = sent(any_queue, tags=["red"], singleton_key="first")
    services.send_many(any_queue.name, [{"tags": ["blue"], "singleton_key": f"b{n}"} for n in range(300)])
    last = sent(any_queue, tags=["red"], singleton_key="last")

    assert services.fetch(any_queue.name, 2, tags=["red"]) == [first, last]


def test_jobs_of_another_queue_are_not_taken(any_queue):  # R138
    other = services.create_queue("other", policy=any_queue.policy)
    theirs = sent(other, tags=["red"], singleton_key="a")
    ours = sent(any_queue, tags=["red"], singleton_key="a")

    assert services.fetch(any_queue.name, 10, tags=["red"]) == [ours]
    assert now(theirs).state == "created"


@pytest.mark.parametrize("others", (0, 300))
def test_of_jobs_with_its_tags_a_worker_takes_the_highest_priority(any_queue, others):  # R138 B6
    blue: list[services.Item] = [{"tags": ["blue"], "singleton_key": f"b{n}", "priority": 9} for n in range(others)]
    services.send_many(any_queue.name, blue)
    sent(any_queue, tags=["red"], singleton_key="low")
    high = sent(any_queue, tags=["red"], singleton_key="high", priority=5)

    assert services.fetch(any_queue.name, 1, tags=["red"]) == [high]


def test_a_worker_with_tags_keeps_the_order(queue):  # R138 B6
    first = sent(queue, tags=["red"])
    high = sent(queue, tags=["red", "x"], priority=5)
    sent(queue, tags=["blue"], priority=9)

    assert services.fetch(queue.name, 10, tags=["red"]) == [high, first]


@pytest.mark.parametrize("tags", ([], ["red"]))
@pytest.mark.parametrize("state", list(JobState))
def test_only_eligible_jobs_are_fetched(any_queue, state, tags):  # R144 R165 R166 R167 R168 R169 R170 R171 R172 R173
    job = job_in(state, any_queue, tags=["red"])

    fetched = services.fetch(any_queue.name, 10, tags=tags, worker="bob")

    assert fetched == ([job] if state in ELIGIBLE else [])
    assert now(job).state == ("active" if state in ELIGIBLE else state)


def test_a_fetched_job_says_who_has_it_and_since_when(any_queue):  # R134 R156 R162 R163 R166
    sent(any_queue, singleton_key="k", tags=["red"])

    (job,) = services.fetch(any_queue.name, worker="ann", tags=["red"])

    assert (job.state, job.assignee, job.tags) == ("active", "ann", ["red"])
    assert job.assigned_at is not None
    assert job.started_at == job.assigned_at == now(job).assigned_at


def test_nothing_ever_returns_to_its_first_state(queue):  # R174 B5
    for state in JobState:
        job_in(state, queue, worker="ann", retry_limit=0 if state == JobState.EXPIRED else 2)
    services.cancel(Job.objects.filter(state="created"))
    verbs = (
        lambda: services.mark_worker_unresponsive("ann"),
        services.reset_running,
        services.expire,
        services.recover_lost,
        lambda: services.retry(Job.objects.all()),
        lambda: returned(services.fetch(queue.name, 100)),
        lambda: [services.fail(job, "x") for job in services.fetch(queue.name, 100)],
        lambda: services.cancel(Job.objects.all()),
        lambda: services.skip(Job.objects.all(), reason="x"),
    )

    for verb in verbs:
        verb()
        assert not Job.objects.in_state("created").exists()


def returned(jobs: list[Job]) -> None:
    for job in jobs:
        services.give_back(job, "drained")
