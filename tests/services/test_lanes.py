"""The order of jobs within a key: delays, skips, and every way a key is released."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.models import Job, Queue
from django_jobqueue.policies import DelayedHead, QueuePolicy
from django_jobqueue.states import BLOCKING, FINAL, FailureReason, Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .lives import sent

AN_HOUR = timedelta(hours=1)


def fetched(queue: Queue) -> list[Job]:
    return services.fetch(queue.name, limit=10)


@pytest.fixture
def blocking_queue(db: None) -> Queue:
    return services.create_fifo_queue("blocking", delayed_head=DelayedHead.BLOCK)


# ----------------------------------------------------------------------------------------------- delayed heads


def test_jobs_pass_a_head_that_is_not_due(fifo_queue):  # B18
    delayed = sent(fifo_queue, singleton_key="a", delay=3600)
    second = sent(fifo_queue, singleton_key="a")

    assert fifo_queue.delayed_head == DelayedHead.PASS
    assert fetched(fifo_queue) == [second]
    assert reread(delayed).hold == Hold.UNTIL


def test_a_delayed_job_takes_its_place_when_it_is_due(fifo_queue):  # B18
    delayed = sent(fifo_queue, singleton_key="a", delay=3600)
    second, third = sent(fifo_queue, singleton_key="a"), sent(fifo_queue, singleton_key="a")
    assert fetched(fifo_queue) == [second]

    rewrite(delayed, start_after=ago(seconds=1))
    services.complete(second.pk)

    assert fetched(fifo_queue) == [delayed]
    services.complete(delayed.pk)
    assert fetched(fifo_queue) == [third]


def test_jobs_wait_for_a_head_that_is_not_due_where_their_queue_says_so(blocking_queue):  # B18
    delayed = sent(blocking_queue, singleton_key="a", delay=3600)
    second = sent(blocking_queue, singleton_key="a")
    other = sent(blocking_queue, singleton_key="b")

    assert fetched(blocking_queue) == [other]
    rewrite(delayed, start_after=ago(seconds=1))
    assert fetched(blocking_queue) == [delayed]
    services.complete(delayed.pk)
    assert fetched(blocking_queue) == [second]


def test_a_delayed_job_blocks_only_what_was_sent_after_it(blocking_queue):  # B18
    first = sent(blocking_queue, singleton_key="a")
    sent(blocking_queue, singleton_key="a", delay=3600)
    sent(blocking_queue, singleton_key="a")

    assert fetched(blocking_queue) == [first]
    services.complete(first.pk)
    assert fetched(blocking_queue) == []


def test_cancelling_a_delayed_head_lets_the_next_go(blocking_queue):  # B18
    delayed, second = sent(blocking_queue, singleton_key="a", delay=3600), sent(blocking_queue, singleton_key="a")
    assert fetched(blocking_queue) == []

    services.cancel([delayed.pk])

    assert fetched(blocking_queue) == [second]


def test_letting_delayed_heads_be_passed_frees_what_waits(
    blocking_queue, django_capture_on_commit_callbacks
):  # B18 R123
    sent(blocking_queue, singleton_key="a", delay=3600)
    second = sent(blocking_queue, singleton_key="a")
    assert fetched(blocking_queue) == []
    assert reread(second).hold == Hold.LANE

    with django_capture_on_commit_callbacks(execute=True):
        services.update_queue(blocking_queue.name, delayed_head="pass")

    assert fetched(blocking_queue) == [second]


def test_rescheduling_a_head_lets_others_pass(fifo_queue):  # B18
    first, second = sent(fifo_queue, singleton_key="a"), sent(fifo_queue, singleton_key="a")

    services.reschedule(first, timezone.now() + AN_HOUR)

    assert fetched(fifo_queue) == [second]


def test_a_rescheduled_job_counts_as_due_from_then_on_until_its_first_attempt(fifo_queue):
    """Else the order audit would say that those who passed it meanwhile had overtaken it."""
    job = sent(fifo_queue, singleton_key="a")
    services.reschedule(job, timezone.now() + AN_HOUR)
    due = reread(job)
    assert due.first_start_after == due.start_after

    services.reschedule(job, timezone.now() - AN_HOUR)
    (claim,) = services.fetch(fifo_queue.name)
    services.fail(claim, "it failed")
    services.reschedule(job, timezone.now() + AN_HOUR)

    assert reread(job).first_start_after != reread(job).start_after


def test_rescheduling_a_delayed_job_to_now_lets_it_go(fifo_queue):
    job = sent(fifo_queue, singleton_key="a", delay=3600)

    services.reschedule(job, timezone.now())

    assert fetched(fifo_queue) == [job]


def test_a_batch_with_delayed_jobs_is_born_with_the_right_holds(fifo_queue):  # B18
    services.send_many(
        fifo_queue.name,
        [
            {"singleton_key": "a", "delay": 3600},
            {"singleton_key": "a"},
            {"singleton_key": "a"},
            {"singleton_key": "b"},
        ],
    )

    assert list(Job.objects.order_by("seq").values_list("hold", flat=True)) == ["until", None, "lane", None]
    assert [job.seq for job in fetched(fifo_queue)] == list(
        Job.objects.order_by("seq").values_list("seq", flat=True)[1:4:2]
    )


# ------------------------------------------------------------------------------------------------ on_exhausted


def test_a_queue_may_skip_jobs_that_used_up_their_attempts(db):  # B23
    queue = services.create_fifo_queue("skipping", on_exhausted="skip")
    first = sent(queue, singleton_key="a", retry_limit=0)
    second = sent(queue, singleton_key="a")

    failure = services.fail(fetched(queue)[0], "boom")

    assert (failure.state, failure.will_retry) == (JobState.STOPPED, False)
    ended = reread(first)
    assert (ended.state, ended.reason, ended.error) == (JobState.STOPPED, FailureReason.EXHAUSTED, "boom")
    assert fetched(queue) == [second]
    assert services.blocked_keys(queue.name) == []
    assert sum(minute.failed for minute in services.activity(queue.name)) == 1


def test_a_skipping_queue_retries_first(db):  # B23
    queue = services.create_fifo_queue("skipping", on_exhausted="skip")
    first = sent(queue, singleton_key="a", retry_limit=1)
    sent(queue, singleton_key="a")

    assert services.fail(fetched(queue)[0], "boom").state == JobState.RETRY

    assert fetched(queue) == [first]


@pytest.mark.parametrize("end", ("expire", "heartbeat"))
def test_a_skipping_queue_goes_on_however_the_attempt_ended(db, end):  # B23 R113
    queue = services.create_fifo_queue("skipping", on_exhausted="skip")
    job = JobFactory(queue=queue, state=JobState.ACTIVE, singleton_key="a", retry_limit=0)
    waiting = sent(queue, singleton_key="a")
    rewrite(job, expire_at=ago(hours=1) if end == "expire" else None, heartbeat_seconds=10, heartbeat_at=ago(hours=1))

    services.expire() if end == "expire" else services.recover_lost()

    assert reread(job).state == JobState.STOPPED
    assert fetched(queue) == [waiting]


# --------------------------------------------------------------------------------------- every way out of a lane

EXITS: dict[str, tuple[JobState, Callable[[Job], object]]] = {
    "complete": (JobState.ACTIVE, lambda job: services.complete(job)),
    "finish_many": (JobState.ACTIVE, lambda job: services.finish_many([(job, None)])),
    "stop": (JobState.ACTIVE, lambda job: services.stop(job)),
    "mark_unknown_stopped": (JobState.ACTIVE, lambda job: services.mark_unknown_stopped(job.pk)),
    "cancel, force": (JobState.ACTIVE, lambda job: services.cancel([job.pk], force=True)),
    "acknowledge": (JobState.CANCELLING, lambda job: services.acknowledge_cancellation(job, was_executing=True)),
    "reset_running": (JobState.CANCELLING, lambda job: services.reset_running()),
    "cancel a retry": (JobState.RETRY, lambda job: services.cancel([job.pk])),
    "skip a retry": (JobState.RETRY, lambda job: services.skip(job, reason="no")),
    "skip": (JobState.FAILED, lambda job: services.skip(job, reason="no")),
    "delete": (JobState.EXPIRED, lambda job: services.delete([job.pk])),
    "purge": (JobState.ACTIVE, lambda job: services.purge(job.queue_id, "active")),
    "cancel the head": (JobState.CREATED, lambda job: services.cancel([job.pk])),
    "complete a lost one": (JobState.UNKNOWN_RETRY, lambda job: services.complete(job.pk)),
}


@pytest.mark.parametrize("exit", list(EXITS))
def test_whatever_ends_the_job_in_front_the_next_one_goes(
    fifo_queue, exit, django_capture_on_commit_callbacks
):  # R014 I2
    state, end = EXITS[exit]
    front = JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    waiting = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)
    behind = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    with django_capture_on_commit_callbacks(execute=True):
        end(front)

    assert (reread(waiting).hold, reread(behind).hold) == (None, Hold.LANE)
    assert fetched(fifo_queue) == [waiting]
    assert services.check_lanes() == []


@pytest.mark.parametrize("state", sorted(BLOCKING))
def test_a_blocked_lane_is_lawful(fifo_queue, state):
    JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    assert services.check_lanes() == []


@pytest.mark.parametrize("state", sorted(FINAL - BLOCKING))
def test_a_lane_that_waits_for_nobody_is_found_and_freed(fifo_queue, caplog, state):
    JobFactory(queue=fifo_queue, state=state, singleton_key="a")
    stranded = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    assert [lane.key for lane in services.check_lanes()] == ["a"]

    assert reread(stranded).hold is None
    assert "stranded lanes" in caplog.text
    assert services.check_lanes() == []


@pytest.mark.parametrize("name", ("singleton_queue", "stately_queue"))
def test_a_stranded_job_of_a_one_at_a_time_queue_is_freed_too(request, name):
    queue = request.getfixturevalue(name)
    stranded = JobFactory(queue=queue, hold=Hold.LANE)

    assert [lane.queue for lane in services.check_lanes()] == [queue.name]

    assert fetched(queue) == [stranded]


# ------------------------------------------------------------------------------------------------- hand over


def test_finishing_hands_the_key_over(fifo_queue):
    sent(fifo_queue, singleton_key="a")
    second = sent(fifo_queue, singleton_key="a")
    (job,) = fetched(fifo_queue)

    finished = services.finish_many([(job, {"n": 1})], hand_over=True, worker="w")

    assert finished.completed == [job.pk]
    assert finished.next == [second]
    now = reread(second)
    assert (now.state, now.assignee, now.attempt) == (JobState.ACTIVE, "w", 1)


@pytest.mark.parametrize("why", ("paused", "tags", "delay", "priority", "limit"))
def test_a_key_is_released_where_it_cannot_be_handed_over(fifo_queue, settings, why):
    sent(fifo_queue, singleton_key="a")
    second = sent(fifo_queue, singleton_key="a", delay=3600 if why == "delay" else None)
    (job,) = services.fetch(fifo_queue.name)
    if why == "paused":
        services.pause(fifo_queue.name)
    elif why == "priority":
        sent(fifo_queue, singleton_key="b", priority=9)
    elif why == "limit":
        settings.JOBQUEUE = {"HAND_OVER_LIMIT": 0}

    finished = services.finish_many([(job, None)], hand_over=True, tags=["x"] if why == "tags" else [])

    assert (finished.completed, finished.next) == ([job.pk], [])
    assert reread(second).state == JobState.CREATED
    assert reread(second).hold == (Hold.UNTIL if why == "delay" else None)


@pytest.mark.parametrize("more_important", (False, True))
def test_only_a_more_important_job_that_can_be_fetched_keeps_a_key_from_being_handed_over(fifo_queue, more_important):
    urgent = sent(fifo_queue, singleton_key="urgent", priority=9)
    (first,) = services.fetch(fifo_queue.name)
    assert first == urgent  # it runs, and so does not wait
    sent(fifo_queue, singleton_key="urgent", priority=9)  # held behind it
    sent(fifo_queue, singleton_key="later", priority=9, delay=3600)
    sent(fifo_queue, singleton_key="a", priority=1)
    (job,) = services.fetch(fifo_queue.name)
    second = sent(fifo_queue, singleton_key="a", priority=1)
    sent(fifo_queue, singleton_key="b")
    if more_important:
        sent(fifo_queue, singleton_key="c", priority=2)
    sent(fifo_queue, singleton_key="d")

    finished = services.finish_many([(job, None)], hand_over=True)

    assert finished.next == ([] if more_important else [second])


def lanes_of_every_kind(queue: Queue) -> dict[str, list[Job]]:
    """The waiting jobs of each lane, behind a job that runs: up to three, each held or not in any way."""
    now = timezone.now()
    kinds = {"free": (None, now), "behind": (Hold.LANE, now), "later": (Hold.UNTIL, now + AN_HOUR)}
    waiting = {}
    for lane in [lane for length in (1, 2, 3) for lane in product(kinds, repeat=length)]:
        key = " ".join(lane)
        sent(queue, singleton_key=key)
        waiting[key] = [
            JobFactory(queue=queue, singleton_key=key, hold=hold, start_after=due)
            for hold, due in (kinds[kind] for kind in lane)
        ]
    return waiting


def next_of(waiting: list[Job], delayed_head: str) -> Job | None:
    """Whose turn it is, said as simply as it can be."""
    for job in waiting:
        if job.hold != Hold.UNTIL:
            return job
        if delayed_head == DelayedHead.BLOCK:
            return None
    return None


@pytest.mark.parametrize("name", ("fifo_queue", "blocking_queue"))
@pytest.mark.parametrize("hand_over", (True, False))
def test_the_next_of_a_lane_goes_whatever_holds_the_others(request, name, hand_over):  # R241 B18
    queue = request.getfixturevalue(name)
    lanes = lanes_of_every_kind(queue)
    running = {job.singleton_key: job for job in services.fetch(queue.name, limit=100)}
    assert running.keys() == lanes.keys()
    expected = {job.pk for waiting in lanes.values() if (job := next_of(waiting, queue.delayed_head))}

    finished = services.finish_many([(job, None) for job in running.values()], hand_over=hand_over)

    assert len(finished.completed) == len(lanes)
    came = finished.next if hand_over else services.fetch(queue.name, limit=100)
    assert {job.pk for job in came} == expected


@pytest.mark.django_db(transaction=True)
def test_a_batch_waits_a_moment_for_keys_that_somebody_looks_at(fifo_queue):
    keys = [f"k{n}" for n in range(20)]
    services.send_many(fifo_queue.name, [{"singleton_key": key} for key in keys * 2])
    jobs = services.fetch(fifo_queue.name, limit=20)
    batches = []

    with connection.copy().cursor() as other:  # as a fetch does, which found these keys taken
        other.execute("BEGIN")
        other.execute(sql.lanes.TRY_KEYS, {"queue": fifo_queue.name, "keys": keys[:10]})

        def watch(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if sql.startswith("SET TRANSACTION"):
                batches.append(sql)
                if len(batches) == 1:
                    other.execute("ROLLBACK")
            return result

        with connection.execute_wrapper(watch):
            finished = services.finish_many([(job, None) for job in jobs], hand_over=True)
        other.db.close()

    assert len(batches) == 2
    assert len(finished.completed) == len(finished.next) == 20


# ------------------------------------------------------------------------------------- the same key in another queue

ELSEWHERE: dict[str, dict[str, Any]] = {
    "waits": {"priority": 9},
    "is held for its lane": {"hold": Hold.LANE},
    "is not due": {"hold": Hold.UNTIL, "start_after": timezone.now() + timedelta(days=1)},
    "is overdue": {"hold": Hold.UNTIL, "start_after": timezone.now() - timedelta(days=1)},
    "runs": {"state": JobState.ACTIVE},
    "waits for its retry": {"state": JobState.RETRY, "priority": 9},
    "failed": {"state": JobState.FAILED},
}


@pytest.mark.django_db
@pytest.mark.parametrize("hand_over", (False, True))
@pytest.mark.parametrize("policy", (QueuePolicy.KEY_STRICT_FIFO, QueuePolicy.SINGLETON))
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_the_same_key_of_another_queue_is_another_lane(elsewhere, policy, hand_over):  # R028
    other, ours = (QueueFactory(name=name, policy=policy, delayed_head=DelayedHead.BLOCK) for name in ("other", "ours"))
    JobFactory(queue=other, singleton_key="a", **ELSEWHERE[elsewhere])
    before = list(Job.objects.filter(queue=other).values())
    first, second = services.send_many(ours.name, [{"singleton_key": "a"}] * 2)

    (job,) = services.fetch(ours.name, 10)
    assert job.pk == first
    finished = services.finish_many([(job, None)], hand_over=hand_over)

    (following,) = finished.next or services.fetch(ours.name, 10)
    assert following.pk == second
    assert bool(finished.next) == (hand_over and policy == QueuePolicy.KEY_STRICT_FIFO)
    assert list(Job.objects.filter(queue=other).values()) == before
