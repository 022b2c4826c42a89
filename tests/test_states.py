"""The state machine: what is listed, what the verbs do, and that the two are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import JobQueueError
from django_jobqueue.models import Job
from django_jobqueue.policies import QueuePolicy, blocks_lane
from django_jobqueue.states import (
    BLOCKING,
    DEAD,
    ELIGIBLE,
    FINAL,
    FOLLOWS,
    OCCUPIED,
    RETRIABLE,
    RETRYING,
    RUNNING,
    SKIPPABLE,
    FailureReason,
    JobState,
    leads_to,
)

from .factories import WORKER, JobFactory
from .past import ago, reread, rewrite

S = JobState

LEGAL = {
    (S.CREATED, S.ACTIVE),
    (S.CREATED, S.CANCELLED),
    (S.RETRY, S.ACTIVE),
    (S.RETRY, S.STOPPED),
    (S.UNKNOWN_RETRY, S.ACTIVE),
    (S.UNKNOWN_RETRY, S.COMPLETED),
    (S.UNKNOWN_RETRY, S.RETRY),
    (S.UNKNOWN_RETRY, S.FAILED),
    (S.UNKNOWN_RETRY, S.EXPIRED),
    (S.UNKNOWN_RETRY, S.STOPPED),
    (S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED),
    (S.ACTIVE, S.COMPLETED),
    (S.ACTIVE, S.RETRY),
    (S.ACTIVE, S.UNKNOWN_RETRY),
    (S.ACTIVE, S.FAILED),
    (S.ACTIVE, S.EXPIRED),
    (S.ACTIVE, S.CANCELLING),
    (S.ACTIVE, S.STOPPED),
    (S.ACTIVE, S.UNKNOWN_STOPPED),
    (S.CANCELLING, S.CANCELLING),
    (S.CANCELLING, S.COMPLETED),
    (S.CANCELLING, S.STOPPED),
    (S.CANCELLING, S.UNKNOWN_STOPPED),
    (S.FAILED, S.RETRY),
    (S.FAILED, S.STOPPED),
    (S.EXPIRED, S.RETRY),
    (S.EXPIRED, S.STOPPED),
    (S.UNKNOWN_STOPPED, S.COMPLETED),
}


def limit(job: Job, *, left: int) -> Job:
    """So many retries left, and the attempt at hand has cost none yet."""
    return rewrite(job, retry_limit=job.retry_count + left, last_retry_at=ago(days=1))


def fail_in_a_skipping_queue(job: Job) -> None:
    job.queue.on_exhausted = "skip"
    job.queue.save()
    services.fail(limit(job, left=0).pk, "boom")


def end_lease(job: Job) -> None:
    """By the next fetch of its queue, which finds nothing for its tags."""
    rewrite(job, lease_until=ago(hours=1))
    services.fetch(job.queue_id, tags=["other"])


VERBS: dict[str, Callable[[Job], object]] = {
    "fetch": lambda job: services.fetch(job.queue_id),
    "complete": lambda job: services.complete(job.pk),
    "fail, retries left": lambda job: services.fail(limit(job, left=1).pk, "boom"),
    "fail, none left": lambda job: services.fail(limit(job, left=0).pk, "boom"),
    "fail, queue skips": fail_in_a_skipping_queue,
    "late expiry, none left": lambda job: services.fail(limit(job, left=0).pk, "boom", reason=FailureReason.EXPIRED),
    "expire, retries left": lambda job: (limit(rewrite(job, expire_at=ago(hours=1)), left=1), services.expire()),
    "expire, none left": lambda job: (limit(rewrite(job, expire_at=ago(hours=1)), left=0), services.expire()),
    "cancel grace over": lambda job: (rewrite(job, cancel_requested_at=ago(hours=1)), services.expire()),
    "heartbeat lost": lambda job: (
        limit(rewrite(job, heartbeat_seconds=10, heartbeat_at=ago(hours=1)), left=1),
        services.recover_lost(),
    ),
    "heartbeat lost, none left": lambda job: (
        limit(rewrite(job, heartbeat_seconds=10, heartbeat_at=ago(hours=1)), left=0),
        services.recover_lost(),
    ),
    "mark_worker_unresponsive": lambda job: services.mark_worker_unresponsive(WORKER),
    "reset_running": lambda job: services.reset_running(),
    "stop": lambda job: services.stop(job.pk),
    "stop, counted": lambda job: services.stop(job.pk, count_retry=True),
    "mark_unknown_stopped": lambda job: services.mark_unknown_stopped(job.pk),
    "acknowledge, executing": lambda job: services.acknowledge_cancellation(job.pk, was_executing=True),
    "acknowledge, unknown": lambda job: services.acknowledge_cancellation(job.pk, was_executing=False),
    "give_back": lambda job: services.give_back(job.pk, "the worker stops"),
    "set_visibility 0": lambda job: services.set_visibility(job, 0),
    "lease over": end_lease,
    "cancel": lambda job: services.cancel([job.pk]),
    "cancel, force": lambda job: services.cancel([job.pk], force=True),
    "retry": lambda job: services.retry(job.pk),
    "skip": lambda job: services.skip(job.pk, reason="not wanted"),
}

# For each verb the states it takes a job from and to; from every other state it changes nothing.
MOVES: dict[str, dict[JobState, JobState]] = {
    "fetch": dict.fromkeys(ELIGIBLE, S.ACTIVE),
    "complete": dict.fromkeys([S.ACTIVE, S.CANCELLING, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED], S.COMPLETED),
    "fail, retries left": dict.fromkeys([S.ACTIVE, S.UNKNOWN_RETRY], S.RETRY),
    "fail, none left": dict.fromkeys([S.ACTIVE, S.UNKNOWN_RETRY], S.FAILED),
    "fail, queue skips": dict.fromkeys([S.ACTIVE, S.UNKNOWN_RETRY], S.STOPPED),
    "late expiry, none left": dict.fromkeys([S.ACTIVE, S.UNKNOWN_RETRY], S.EXPIRED),
    "expire, retries left": {S.ACTIVE: S.RETRY},
    "expire, none left": {S.ACTIVE: S.EXPIRED},
    "cancel grace over": {S.CANCELLING: S.UNKNOWN_STOPPED},
    "heartbeat lost": {S.ACTIVE: S.UNKNOWN_RETRY},
    "heartbeat lost, none left": {S.ACTIVE: S.FAILED},
    "mark_worker_unresponsive": {S.ACTIVE: S.UNKNOWN_RETRY, S.CANCELLING: S.UNKNOWN_STOPPED},
    "reset_running": {S.ACTIVE: S.UNKNOWN_RETRY, S.CANCELLING: S.UNKNOWN_STOPPED},
    "stop": dict.fromkeys([S.ACTIVE, S.CANCELLING, S.UNKNOWN_RETRY], S.STOPPED),
    "stop, counted": {S.CANCELLING: S.STOPPED},
    "mark_unknown_stopped": dict.fromkeys([S.ACTIVE, S.CANCELLING, S.UNKNOWN_RETRY], S.UNKNOWN_STOPPED),
    "acknowledge, executing": {S.CANCELLING: S.STOPPED},
    "acknowledge, unknown": {S.CANCELLING: S.UNKNOWN_STOPPED},
    "give_back": {S.ACTIVE: S.RETRY},
    "set_visibility 0": {S.ACTIVE: S.RETRY},
    "lease over": {S.ACTIVE: S.RETRY},
    "cancel": {
        S.CREATED: S.CANCELLED,
        S.RETRY: S.STOPPED,
        S.UNKNOWN_RETRY: S.STOPPED,
        S.ACTIVE: S.CANCELLING,
    },
    "cancel, force": {
        S.CREATED: S.CANCELLED,
        S.RETRY: S.STOPPED,
        S.UNKNOWN_RETRY: S.STOPPED,
        S.ACTIVE: S.STOPPED,
        S.CANCELLING: S.STOPPED,
    },
    "retry": dict.fromkeys(DEAD, S.RETRY),
    "skip": dict.fromkeys([*DEAD, S.RETRY, S.UNKNOWN_RETRY], S.STOPPED),
}


@pytest.mark.parametrize("source", list(JobState))
@pytest.mark.parametrize("target", list(JobState))
def test_the_list_of_transitions_is_the_specification_s(source, target):  # R312
    assert (target in FOLLOWS[source]) == ((source, target) in LEGAL)
    assert (source in leads_to(target)) == ((source, target) in LEGAL)


def test_nothing_returns_to_created():  # R174
    assert leads_to(S.CREATED) == set()


def test_the_sets_are_the_specification_s():  # R144 B9
    assert {S.CREATED, S.RETRY, S.UNKNOWN_RETRY} == ELIGIBLE
    assert {S.RETRY, S.UNKNOWN_RETRY} == RETRYING
    assert {S.ACTIVE, S.CANCELLING} == RUNNING
    assert {S.RETRY, S.UNKNOWN_RETRY, S.ACTIVE, S.CANCELLING, S.FAILED, S.EXPIRED} == BLOCKING
    assert {S.FAILED, S.EXPIRED} == DEAD
    assert {S.COMPLETED, S.CANCELLED, S.STOPPED, S.UNKNOWN_STOPPED, S.FAILED, S.EXPIRED} == FINAL
    assert {S.CREATED, S.RETRY, S.UNKNOWN_RETRY, S.ACTIVE, S.CANCELLING} == OCCUPIED


def test_what_operators_may_retry_and_skip_follows_from_the_transitions():  # B9
    assert RETRIABLE == DEAD
    assert {S.FAILED, S.EXPIRED, S.RETRY, S.UNKNOWN_RETRY} == SKIPPABLE


def test_the_list_cannot_be_changed_at_run_time():
    with pytest.raises(TypeError):
        FOLLOWS[S.COMPLETED] = frozenset({S.ACTIVE})  # type: ignore[index]


def test_what_blocks_a_lane_depends_on_the_policy():
    assert blocks_lane(QueuePolicy.KEY_STRICT_FIFO) == BLOCKING
    assert blocks_lane(QueuePolicy.SINGLETON) == blocks_lane(QueuePolicy.STATELY) == RUNNING


@pytest.mark.django_db
@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_moves_what_it_may_and_nothing_else(fifo_queue, verb, state):  # R267 R312 I4 I5 I6 F56
    job = JobFactory(queue=fifo_queue, state=state)

    try:
        with transaction.atomic():
            VERBS[verb](job)
    except JobQueueError:
        assert state not in MOVES[verb]

    now = reread(job)
    assert JobState(now.state) == MOVES[verb].get(state, state)
    assert (now.finalized_at is not None) == (now.state in FINAL)
    assert now.started_at == job.started_at or job.started_at is None
    assert now.assignee == job.assignee or verb == "fetch"
    assert now.retry_limit is None or now.retry_count <= now.retry_limit


def test_the_verbs_together_walk_every_pair():
    walked = {(source, target) for moves in MOVES.values() for source, target in moves.items()}

    assert walked == LEGAL - {(S.CANCELLING, S.CANCELLING)}


@pytest.mark.django_db
def test_cancelling_twice_is_no_error_and_changes_nothing(queue):  # R274
    job = JobFactory(queue=queue, state=S.CANCELLING)

    assert services.cancel([job.pk]).cancelled == [job.pk]
    assert reread(job).state == S.CANCELLING
    assert reread(job).cancel_requested_at == job.cancel_requested_at
