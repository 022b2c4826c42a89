"""What operators do: retry, skip, delete, purge; leases, signs of life and other times."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, FINAL, JobState

from .lives import check_lawful, claimed, in_the_past, job_in, now, refused, sent, snapshot

SKIPPABLE = sorted(DEAD | {JobState.RETRY, JobState.UNKNOWN_RETRY})


# ------------------------------------------------------------------------------------------------- retry and skip


@pytest.mark.parametrize("state", sorted(DEAD))
def test_a_dead_job_gets_another_attempt_at_once(queue, state):  # R174 B5 B9 B10 I4 I6
    job = job_in(state, queue, retry_delay=3600)
    before = now(job)

    outcome = services.retry(job.pk)

    after = now(job)
    assert (outcome.moved, outcome.refused) == ([job.pk], {})
    assert before.retry_limit is not None
    assert (after.state, after.retry_limit, after.finalized_at) == ("retry", before.retry_limit + 1, None)
    check_lawful(job)
    assert services.fetch(queue.name) == [job]


def test_a_retried_job_may_fail_once_more(queue):  # B9 I6
    job = job_in(JobState.EXPIRED, queue)
    services.retry(job.pk)
    (again,) = services.fetch(queue.name)

    assert services.fail(again, "boom").state == "retry"
    (last,) = services.fetch(queue.name)
    assert services.fail(last, "boom").state == "failed"
    check_lawful(job)


@pytest.mark.parametrize("data", ({"a": 2}, None, [], 0))
def test_a_retry_may_change_the_data(queue, data):
    job = job_in(JobState.FAILED, queue)

    services.retry(job.pk, data=data)

    assert now(job).data == data
    assert services.fetch(queue.name)[0].data == data


def test_a_retry_keeps_the_data_unless_told_otherwise(queue):
    job = claimed(queue, {"a": 1})
    services.fail(job, "boom", for_good=True)

    services.retry(job.pk)

    assert now(job).data == {"a": 1}


def test_many_are_retried_and_what_cannot_be_is_told(queue):  # B31
    dead, running, missing = job_in(JobState.FAILED, queue), claimed(queue), uuid7()

    outcome = services.retry([dead.pk, running.pk, missing])

    assert outcome.moved == [dead.pk]
    assert outcome.refused == {running.pk: "it is active", missing: "there is no such job"}
    assert (len(outcome), bool(outcome)) == (1, True)


def test_a_dead_job_whose_place_is_taken_stays_dead(queue):  # B31 I10
    dead, free = job_in(JobState.FAILED, queue, singleton_key="k"), job_in(JobState.FAILED, queue)
    holder = sent(queue, singleton_key="k")

    outcome = services.retry([dead.pk, free.pk])

    assert outcome.moved == [free.pk]
    assert str(holder.pk) in outcome.refused[dead.pk]
    assert now(dead).state == "failed"


@pytest.mark.parametrize("policy", ("queue", "exclusive_queue", "stately_queue"))
def test_of_two_dead_jobs_of_one_place_one_is_retried(policy, request):  # B31
    queue = request.getfixturevalue(policy)
    jobs = [job_in(JobState.FAILED, queue, singleton_key="k") for _ in range(2)]

    outcome = services.retry(jobs)

    assert (len(outcome.moved), len(outcome.refused)) == (1, 1)
    assert sorted(now(job).state for job in jobs) == ["failed", "retry"]


def test_operators_may_give_a_queryset_even_a_sliced_one(queue):
    jobs = [job_in(JobState.FAILED, queue) for _ in range(3)]

    outcome = services.retry(Job.objects.dead().order_by("seq")[:2])

    assert set(outcome.moved) == {jobs[0].pk, jobs[1].pk}
    assert services.skip(Job.objects.dead(), reason="old").moved == [jobs[2].pk]


@pytest.mark.parametrize("state", SKIPPABLE)
def test_skip_ends_a_job_with_its_reason_and_keeps_its_error(queue, state):  # R157 I4
    job = job_in(state, queue)
    error = now(job).error
    assert error

    assert services.skip(job.pk, reason="bad customer", operator="ann").moved == [job.pk]

    stored = now(job)
    assert (stored.state, stored.reason, stored.error) == ("stopped", "skipped", error)
    assert stored.note == "ann: bad customer"
    check_lawful(job)


@pytest.mark.parametrize("state", SKIPPABLE)
def test_skip_lets_the_next_of_a_key_go(fifo_queue, state):
    blocker = job_in(state, fifo_queue, singleton_key="k", retry_delay=3600)
    after = sent(fifo_queue, singleton_key="k")

    services.skip(blocker.pk, reason="bad")

    assert services.fetch(fifo_queue.name, 10) == [after]


# ----------------------------------------------------------------------------------------------- delete and purge


@pytest.mark.parametrize("state", sorted(FINAL))
def test_final_and_dead_jobs_can_be_deleted(queue, state):  # R306 B26
    job = job_in(state, queue)

    assert services.delete(job.pk) == 1

    assert not Job.objects.exists()


def test_one_unfinished_job_keeps_all_of_them(queue):  # R307 B26
    done, waiting = job_in(JobState.COMPLETED, queue), sent(queue)

    with refused(InvalidTransition) as caught:
        services.delete([done.pk, waiting.pk])

    assert (caught.value.job_id, caught.value.state) == (waiting.pk, "created")


def test_one_missing_job_keeps_all_of_them(queue):  # R307 R313
    done, missing = job_in(JobState.COMPLETED, queue), uuid7()

    with refused(JobNotFound) as caught:
        services.delete([done.pk, missing])

    assert caught.value.job_ids == [missing]


def test_ids_and_tags_mean_all_of_both(queue):  # R305
    jobs = [job_in(JobState.COMPLETED, queue, tags=tags) for tags in (["a", "b"], ["a", "b", "c"], [], ["a"])]

    assert services.delete(jobs[2].pk, tags=["b", "a"]) == 3

    assert Job.objects.get() == jobs[3]


def test_one_unfinished_tagged_job_keeps_all_of_them(queue):  # R305 R307
    job_in(JobState.COMPLETED, queue, tags=["a"])
    sent(queue, tags=["a"])

    with refused(InvalidTransition):
        services.delete(tags=["a"])


def test_deleting_nothing_in_particular_is_an_error(queue):  # B38
    job_in(JobState.COMPLETED, queue)

    with refused(InvalidOption):
        services.delete()
    with refused(InvalidOption):
        services.delete([], tags=())


def test_purge_takes_any_state_and_only_its_queue(queue, short_queue):  # B26
    for state in JobState:
        job_in(state, queue)
    other = sent(short_queue)

    assert services.purge(queue.name) == len(JobState)

    assert Job.objects.get() == other


@pytest.mark.parametrize("state", list(JobState))
def test_purge_of_one_state_leaves_the_others(queue, state):  # B26
    for each in JobState:
        job_in(each, queue)

    assert services.purge(queue.name, state) == 1

    assert set(Job.objects.values_list("state", flat=True)) == set(JobState) - {state}


@pytest.mark.parametrize("ttl", (3600, 3600.0, timedelta(hours=1)))
def test_cleanup_by_age_takes_old_completed_jobs_and_nothing_else(queue, ttl):  # R298
    jobs = {state: job_in(state, queue) for state in JobState}
    for job in jobs.values():
        in_the_past(job, "created_at", "start_after", "finalized_at", "delete_at", interval="100 days")
    young = job_in(JobState.COMPLETED, queue)
    in_the_past(young, "finalized_at", interval="30 minutes")

    assert services.cleanup(ttl) == {queue.name: 1}

    assert set(Job.objects.all()) == {*jobs.values(), young} - {jobs[JobState.COMPLETED]}


# ------------------------------------------------------------------------------------- leases, signs of life, times


def test_a_lease_of_zero_gives_the_job_back_uncharged(queue):  # B33 B34
    job = claimed(queue)

    services.set_visibility(job, 0)

    assert (now(job).state, now(job).retry_count, now(job).last_retry_at) == ("retry", 0, None)
    assert services.fetch(queue.name) == [job]


def test_a_lease_that_ran_out_gives_the_job_back_uncharged(queue):  # B33
    job = claimed(queue)
    services.set_visibility(job, 30)
    assert services.fetch(queue.name) == []
    in_the_past(job, "lease_until")

    (again,) = services.fetch(queue.name)

    assert (again.pk, again.attempt, again.retry_count) == (job.pk, 2, 0)


def test_a_lease_can_be_made_longer(queue):  # B33
    sent(queue)
    (job,) = services.fetch(queue.name, lease=1)

    services.set_visibility(job, 3600)
    in_the_past(job, "lease_until", interval="30 minutes")

    assert services.fetch(queue.name) == []
    assert now(job).state == "active"


def test_on_an_ordered_queue_only_the_holder_may_give_back(fifo_queue):  # B33
    job = claimed(fifo_queue, singleton_key="k")

    for seconds in (0, 60):
        with refused(InvalidOption):
            services.set_visibility(job.pk, seconds)

    services.set_visibility(job, 0)
    assert now(job).state == "retry"


def test_a_job_made_visible_still_blocks_its_key(fifo_queue):  # B33 B34
    job = claimed(fifo_queue, singleton_key="k")
    sent(fifo_queue, singleton_key="k")

    services.set_visibility(job, 0)

    assert services.fetch(fifo_queue.name, 10) == [job]


def test_touch_renews_the_sign_of_life_and_tells_the_state(queue):
    job = claimed(queue, heartbeat_seconds=10)
    in_the_past(job, "heartbeat_at")

    assert services.touch(job) == JobState.ACTIVE

    found = now(job).heartbeat_at
    assert found is not None
    assert timezone.now() - found < timedelta(minutes=1)


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.ACTIVE, JobState.CANCELLING}))
def test_touching_a_job_that_is_not_held_is_a_lost_claim(queue, state):  # I7
    job = job_in(state, queue)

    with refused(ClaimLost):
        services.touch(job)


def test_a_waiting_job_can_be_put_off_and_back(queue):
    job = sent(queue)

    services.reschedule(job.pk, timezone.now() + timedelta(hours=1))
    assert services.fetch(queue.name) == []

    services.reschedule(job, timezone.now() - timedelta(hours=1))
    assert services.fetch(queue.name) == [job]


def test_a_job_that_waits_for_its_retry_can_go_at_once(queue):  # R168
    job = job_in(JobState.RETRY, queue, retry_delay=3600)
    assert services.fetch(queue.name) == []

    services.reschedule(job.pk, timezone.now())

    assert services.fetch(queue.name) == [job]
    assert now(job).retry_count == 1


def test_a_job_that_was_put_off_is_passed_by_the_next_of_its_key(fifo_queue):
    first, second = sent(fifo_queue, singleton_key="k"), sent(fifo_queue, singleton_key="k")

    services.reschedule(first.pk, timezone.now() + timedelta(hours=1))

    assert services.fetch(fifo_queue.name, 10) == [second]


def test_asking_for_a_job_changes_nothing(queue):  # R293
    job = claimed(queue)
    before = snapshot()

    services.why(job.pk)
    services.list_jobs(queue.name)
    assert services.get_job(job.pk) == job

    assert snapshot() == before
