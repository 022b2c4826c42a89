"""Every verb on a job in every state: allowed exactly where the table of transitions says, else nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidTransition
from django_jobqueue.models import Job
from django_jobqueue.states import BLOCKING, DEAD, ELIGIBLE, FINAL, FOLLOWS, RUNNING, JobState

from .lives import check_lawful, claimed, job_in, now, refused, snapshot

S = JobState
Verb = Callable[[Any], object]
Becomes = dict[JobState, JobState]

HELD_OR_LOST = (S.ACTIVE, S.CANCELLING, S.UNKNOWN_RETRY)

# One line per verb: the call, what each allowed state becomes, and the word for it in the error.
VERBS: dict[str, tuple[Verb, Becomes, str]] = {
    "complete": (
        lambda id: services.complete(id, 1),
        dict.fromkeys((*HELD_OR_LOST, S.UNKNOWN_STOPPED), S.COMPLETED),
        "completed",
    ),
    "fail": (lambda id: services.fail(id, "boom"), dict.fromkeys((S.ACTIVE, S.UNKNOWN_RETRY), S.RETRY), "retry"),
    "fail for good": (
        lambda id: services.fail(id, "boom", for_good=True),
        dict.fromkeys((S.ACTIVE, S.UNKNOWN_RETRY), S.FAILED),
        "",
    ),
    "stop": (services.stop, dict.fromkeys(HELD_OR_LOST, S.STOPPED), "stopped"),
    "stop with retry": (lambda id: services.stop(id, count_retry=True), {S.CANCELLING: S.STOPPED}, "stopped"),
    "mark_unknown_stopped": (
        services.mark_unknown_stopped,
        dict.fromkeys(HELD_OR_LOST, S.UNKNOWN_STOPPED),
        "unknown_stopped",
    ),
    "acknowledge, executing": (
        lambda id: services.acknowledge_cancellation(id, was_executing=True),
        {S.CANCELLING: S.STOPPED},
        "stopped",
    ),
    "acknowledge, not executing": (
        lambda id: services.acknowledge_cancellation(id, was_executing=False),
        {S.CANCELLING: S.UNKNOWN_STOPPED},
        "unknown_stopped",
    ),
    "give_back": (lambda id: services.give_back(id, "drained"), {S.ACTIVE: S.RETRY}, "retry"),
    "set_visibility to zero": (lambda id: services.set_visibility(id, 0), {S.ACTIVE: S.RETRY}, ""),
    "set_visibility": (lambda id: services.set_visibility(id, 60), {S.ACTIVE: S.ACTIVE}, ""),
    "retry": (services.retry, dict.fromkeys(DEAD, S.RETRY), "retry"),
    "skip": (
        lambda id: services.skip(id, reason="bad"),
        dict.fromkeys(DEAD | {S.RETRY, S.UNKNOWN_RETRY}, S.STOPPED),
        "stopped",
    ),
    "reschedule": (lambda id: services.reschedule(id, timezone.now()), {state: state for state in ELIGIBLE}, ""),
}
ALLOWED = [(verb, state) for verb in VERBS for state in S if state in VERBS[verb][1]]
REFUSED = [(verb, state) for verb in VERBS for state in S if state not in VERBS[verb][1]]


@pytest.mark.parametrize(("verb", "state"), ALLOWED)
def test_a_verb_moves_a_job_as_the_table_says(queue, verb, state):  # R176 R267 I4 I5 I6
    call, becomes, _ = VERBS[verb]
    job = job_in(state, queue)
    before = now(job)

    call(job.pk)

    after = now(job)
    assert after.state == becomes[state]
    assert after.state == state or after.state in FOLLOWS[state]
    assert (after.assignee, after.assigned_at) == (before.assignee, before.assigned_at)
    assert (after.started_at, after.attempt) == (before.started_at, before.attempt)
    check_lawful(job)


@pytest.mark.parametrize(("verb", "state"), REFUSED)
def test_a_verb_in_the_wrong_state_names_both_and_changes_nothing(queue, verb, state):  # R246 R254 R259 R267 R283 R312
    call, becomes, wanted = VERBS[verb]
    job = job_in(state, queue)

    with refused(InvalidTransition) as caught:
        call(job.pk)

    error = caught.value
    assert (error.job_id, error.state, error.allowed) == (job.pk, state, sorted(becomes))
    assert not wanted or error.wanted == wanted
    assert all(word in str(error) for word in (str(job.pk), state.value, error.wanted))


@pytest.mark.parametrize("state", sorted(set(S) - BLOCKING - {S.CREATED}))
@pytest.mark.parametrize("verb", VERBS)
def test_the_rules_are_the_same_on_an_ordered_queue(fifo_queue, verb, state):  # R267 R312 F56
    call, becomes, _ = VERBS[verb]
    job = job_in(state, fifo_queue, singleton_key="k")

    if state in becomes:
        call(job.pk)
        assert now(job).state == becomes[state]
    else:
        with refused(InvalidTransition):
            call(job.pk)


@pytest.mark.parametrize("state", sorted(set(S) - FINAL))
def test_what_is_not_final_cannot_be_deleted(queue, state):  # R306 R307 B26
    job = job_in(state, queue)

    with refused(InvalidTransition) as caught:
        services.delete(job.pk)

    assert (caught.value.state, caught.value.wanted) == (state, "deleted")


@pytest.mark.parametrize("verb", ("retry", "skip"))
def test_many_in_wrong_states_are_told_one_by_one(queue, verb):  # B31 R312
    jobs = {state: job_in(state, queue) for state in S}
    allowed = set(VERBS[verb][1])

    outcome = VERBS[verb][0]([job.pk for job in jobs.values()])

    assert isinstance(outcome, services.Outcome)
    assert set(outcome.moved) == {jobs[state].pk for state in allowed}
    assert outcome.refused == {jobs[state].pk: f"it is {state.value}" for state in set(S) - allowed}


@pytest.mark.parametrize("verb", ("retry", "skip"))
def test_many_of_which_none_can_move_change_nothing(queue, verb):  # R312
    jobs = [job_in(state, queue) for state in S if state not in VERBS[verb][1]]
    before = snapshot()["jobqueue_job"]

    outcome = VERBS[verb][0](jobs)

    assert isinstance(outcome, services.Outcome)
    assert (outcome.moved, len(outcome.refused), bool(outcome)) == ([], len(jobs), False)
    assert snapshot()["jobqueue_job"] == before


@pytest.mark.parametrize("state", sorted(set(S) - {S.ACTIVE, S.CANCELLING, S.UNKNOWN_RETRY, S.UNKNOWN_STOPPED}))
def test_a_batch_of_completions_lists_what_was_lost(queue, state):  # B27 I7
    job = job_in(state, queue)
    before = snapshot()

    finished = services.finish_many([(job, "late")])

    assert (finished.completed, finished.lost) == ([], [job.pk])
    assert snapshot() == before


@pytest.mark.parametrize("sweep", ("expire", "recover_lost", "check_lanes", "warn_backlogs", "cleanup"))
def test_a_sweep_that_finds_nothing_changes_nothing(queue, sweep):
    for state in S:
        job_in(state, queue)
    before = snapshot()

    assert not getattr(services, sweep)()

    assert snapshot() == before


@pytest.mark.parametrize("state", list(S))
def test_the_time_limit_is_only_for_what_runs(queue, state):  # B10
    job = job_in(state, queue)
    Job.objects.filter(pk=job.pk).update(expire_at=timezone.now() - timedelta(days=1))
    before = now(job)

    services.expire()

    if state == S.ACTIVE:
        assert (now(job).state, now(job).retry_count) == ("retry", 1)
    else:
        assert now(job).state == before.state


def test_the_time_limit_without_retries_left_is_a_death_of_its_own(queue):  # B10
    job = job_in(S.EXPIRED, queue)

    assert (now(job).reason, now(job).finalized_at is not None) == ("expired", True)
    assert services.retry(job.pk).moved == [job.pk]


@pytest.mark.parametrize("state", sorted(RUNNING))
def test_running_jobs_are_touched_in_every_running_state(queue, state):
    job = claimed(queue) if state == S.ACTIVE else job_in(state, queue)

    assert services.touch(job) == state
