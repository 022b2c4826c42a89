"""Complete and fail: what they write, from where, and who may."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from django_jobqueue.models import Job
from django_jobqueue.options import YEAR
from django_jobqueue.states import JobState

from .lives import check_lawful, claimed, holds, in_the_past, job_in, now, refused, sent, snapshot

COMPLETABLE = [JobState.ACTIVE, JobState.CANCELLING, JobState.UNKNOWN_RETRY, JobState.UNKNOWN_STOPPED]


def test_completing_stores_the_output_and_the_time(queue):  # R157 R159 R167 R238 R242 I4
    job = claimed(queue)

    services.complete(job, {"sum": 3})

    stored = now(job)
    assert (stored.state, stored.output, stored.error) == ("completed", {"sum": 3}, "")
    assert stored.finalized_at is not None
    assert stored.assigned_at is not None
    assert stored.finalized_at >= stored.assigned_at
    check_lawful(job)


@pytest.mark.parametrize("state", COMPLETABLE)
@pytest.mark.parametrize("by", ("id", "text", "claim"))
def test_complete_is_allowed_from_these_states(queue, state, by):  # R176 R242 R243 R244 R245 B13
    job = job_in(state, queue)
    target: Any = {"id": job.pk, "text": str(job.pk), "claim": job}[by]

    services.complete(target, "late")

    assert (now(job).state, now(job).output) == ("completed", "late")
    check_lawful(job)


def test_a_late_success_renews_the_final_time(queue):  # R157 R245
    job = job_in(JobState.UNKNOWN_STOPPED, queue)
    in_the_past(job, "finalized_at", interval="1 day")

    services.complete(job.pk)

    found = now(job).finalized_at
    assert found is not None
    assert timezone.now() - found < timedelta(minutes=1)


def test_complete_keeps_who_had_it_and_since_when(queue):  # R162 R163 R239 I5
    job = claimed(queue, worker="ann")

    services.complete(job)

    assert (now(job).assignee, now(job).assigned_at) == ("ann", job.assigned_at)


def test_complete_frees_the_workers_capacity(queue):  # R164 R240
    job = claimed(queue, worker="ann")
    assert holds("ann") == {job.pk}

    services.complete(job)

    assert holds("ann") == set()
    assert now(job).assignee == "ann"  # kept, and it no longer means that ann works on it


def test_a_completed_job_is_never_fetched_again(queue):  # R247 R144
    job = claimed(queue)
    services.complete(job)
    services.reset_running()
    services.mark_worker_unresponsive(job.assignee)
    in_the_past(job, "expire_at", "assigned_at")
    services.expire()

    assert services.fetch(queue.name, 10) == []
    assert now(job).state == "completed"


def test_failing_waits_for_the_next_attempt(queue):  # R158 R160 R161 R168 R249 R250 B5
    job = claimed(queue)

    failure = services.fail(job, "boom")

    stored = now(job)
    assert (stored.state, stored.error, stored.retry_count) == ("retry", "boom", 1)
    assert stored.last_retry_at is not None
    assert job.assigned_at is not None
    assert stored.last_retry_at >= job.assigned_at
    assert (failure.id, failure.state, failure.retry_count, failure.will_retry) == (job.pk, "retry", 1, True)
    assert failure.next_retry_at == stored.start_after
    check_lawful(job)


def test_failing_records_when_the_attempt_ended_and_not_that_the_job_did(queue):  # R251 B16 I4
    job = claimed(queue)

    services.fail(job, "boom")

    stored = now(job)
    assert stored.attempt_finished_at is not None
    assert stored.attempt_finished_at == stored.last_retry_at
    assert stored.finalized_at is None


def test_failing_keeps_who_had_it_and_frees_capacity(queue):  # R162 R163 R252 I5
    job = claimed(queue, worker="ann")

    services.fail(job, "boom")

    assert (now(job).assignee, now(job).assigned_at) == ("ann", job.assigned_at)
    assert holds("ann") == set()


def test_a_failed_attempt_stays_in_that_state_until_it_is_assigned_again(queue):  # R168 R174 R175 B5
    job = claimed(queue)
    services.fail(job, "boom")
    assert now(job).state == "retry"

    assert services.fetch(queue.name) == [job]
    assert now(job).state == "active"


@pytest.mark.parametrize("state", (JobState.ACTIVE, JobState.UNKNOWN_RETRY))
def test_fail_is_allowed_from_these_states(queue, state):  # R176 R253
    job = job_in(state, queue)

    services.fail(job.pk, "boom")

    assert (now(job).state, now(job).retry_count) == ("retry", 1)
    check_lawful(job)


@pytest.mark.parametrize("error", ("", " \n\t"))
def test_a_failure_needs_a_message(queue, error):  # R248 R315
    job = claimed(queue)

    with refused(InvalidOption) as caught:
        services.fail(job, error)

    assert caught.value.option == "error"


def test_a_job_fails_for_good_when_its_retries_are_used_up(queue):  # B9 I4 I6
    job = claimed(queue, retry_limit=1)
    services.fail(job, "first")
    (again,) = services.fetch(queue.name)

    failure = services.fail(again, "second")

    assert (failure.state, failure.will_retry, failure.next_retry_at) == ("failed", False, None)
    assert (now(job).state, now(job).retry_count, now(job).error) == ("failed", 1, "second")
    check_lawful(job)


def test_a_failure_says_in_how_many_seconds_the_next_attempt_is_due(queue):
    job = claimed(queue, retry_limit=1)

    assert services.fail(job, "boom", retry_after=0).retry_in_seconds == 0
    (again,) = services.fetch(queue.name)
    assert services.fail(again, "boom").retry_in_seconds is None


@pytest.mark.parametrize(("verb", "option"), ((services.fail, "retry_after"), (services.give_back, "delay")))
def test_the_next_attempt_is_due_within_a_hundred_years(queue, verb, option):
    job = claimed(queue)
    with refused(InvalidOption) as caught:
        verb(job, "boom", **{option: 100 * YEAR + 1})
    assert caught.value.option == option

    verb(job, "boom", **{option: 100 * YEAR})
    assert now(job).start_after - timezone.now() > timedelta(days=99 * 365)


def test_without_a_limit_a_job_never_fails_for_good(queue):  # B9
    job = claimed(queue, retry_limit=None)
    for n in range(1, 21):
        assert services.fail(job, "boom").retry_count == n
        (job,) = services.fetch(queue.name)

    assert now(job).retry_count == 20


def test_the_first_start_is_kept_and_the_assignment_is_renewed(queue):  # R156 R163 I5
    job = claimed(queue, worker="ann")
    services.fail(job, "boom")
    in_the_past(job, "started_at", "assigned_at")
    before = now(job)

    services.fetch(queue.name, worker="bob")

    after = now(job)
    assert after.started_at == before.started_at
    assert after.assigned_at is not None
    assert before.assigned_at is not None
    assert (after.assignee, after.assigned_at > before.assigned_at) == ("bob", True)


def test_every_failed_attempt_is_in_the_history(queue):  # R158
    job = claimed(queue, worker="ann")
    services.fail(job, "first")
    (again,) = services.fetch(queue.name, worker="bob")
    services.fail(again, "second")

    seen = [(entry["attempt"], entry["worker"], entry["error"]) for entry in now(job).attempts]

    assert seen == [(1, "ann", "first"), (2, "bob", "second")]


def raised_error():
    try:
        raise ValueError("no such card\nDETAIL: 4111")
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "summary"),
    (
        (raised_error(), "ValueError: no such card"),
        (
            ExceptionGroup("all", [ValueError("a\nb"), KeyError("c")]),
            "ExceptionGroup: all [ValueError: a; KeyError: 'c']",
        ),
        ("\nthe printer is on fire\nagain", "the printer is on fire"),
    ),
)
def test_a_failure_is_stored_with_its_reason_in_one_line(queue, error, summary):
    job = claimed(queue)

    services.fail(job, error)

    stored = now(job)
    assert stored.error_summary == summary
    assert [entry["error_summary"] for entry in stored.attempts] == [summary]


def test_the_summary_lives_as_long_as_the_error(queue):
    job = claimed(queue, retry_limit=0)
    services.fail(job, "first")
    services.retry([job.pk])
    waiting = now(job)
    (again,) = services.fetch(queue.name)
    services.give_back(again, "")
    returned = now(job)
    (last,) = services.fetch(queue.name)
    services.fail(last, "second", for_good=True)
    services.retry([job.pk])
    (done,) = services.fetch(queue.name)
    services.complete(done)

    assert (waiting.error, waiting.error_summary) == ("first", "first")
    assert (returned.error, returned.error_summary) == ("", None)
    assert (now(job).error, now(job).error_summary) == ("", None)
    assert [entry["error_summary"] for entry in now(job).attempts] == ["first", None, "second"]


def test_the_history_keeps_both_ends_of_a_long_error(queue):
    job = claimed(queue)

    services.fail(job, f"head\n{'x' * 6_000}\ntail")

    (entry,) = now(job).attempts
    assert len(now(job).error) == 6_010
    assert len(entry["error"]) in range(3_990, 4_001)
    assert entry["error"].startswith("head\nx")
    assert entry["error"].endswith("x\ntail")
    assert "characters left out" in entry["error"]


def test_failures_that_differ_in_the_values_of_a_row_are_the_same_failure(queue):
    first, second = claimed(queue), claimed(queue)

    services.fail(first, 'duplicate key violates "orders_email"\nDETAIL: (email)=(ada@example.com)')
    services.fail(second, 'duplicate key violates "orders_email"\nDETAIL: (email)=(bob@example.com)')

    assert now(first).fingerprint == now(second).fingerprint != ""


def test_whoever_knows_the_id_may_finish(queue):  # R255 B27
    first, second = claimed(queue, worker="ann"), claimed(queue, worker="ann")

    services.complete(first.pk)
    services.fail(str(second.pk), "boom")

    assert (now(first).state, now(second).state) == ("completed", "retry")


# ---------------------------------------------------------------------------------------------------- claims lost

FENCED: dict[str, Callable[[Job], object]] = {
    "complete": lambda job: services.complete(job, "stale"),
    "fail": lambda job: services.fail(job, "stale"),
    "stop": lambda job: services.stop(job, "stale"),
    "mark_unknown_stopped": lambda job: services.mark_unknown_stopped(job, "stale"),
    "give_back": lambda job: services.give_back(job, "stale"),
    "set_visibility": lambda job: services.set_visibility(job, 60),
    "set_visibility to zero": lambda job: services.set_visibility(job, 0),
    "touch": services.touch,
    "acknowledge_cancellation": lambda job: services.acknowledge_cancellation(job, was_executing=True),
}


@pytest.mark.parametrize("verb", FENCED)
@pytest.mark.parametrize("policy", ("queue", "fifo_queue"))
def test_an_outdated_claim_changes_nothing(policy, verb, request):  # B27 I7
    queue = request.getfixturevalue(policy)
    old = claimed(queue)
    services.give_back(old, "drained")
    (new,) = services.fetch(queue.name, worker="other")
    assert new.attempt == old.attempt + 1

    with refused(ClaimLost) as caught:
        FENCED[verb](old)

    assert (caught.value.job_id, caught.value.attempt, caught.value.now) == (old.pk, 1, 2)


@pytest.mark.parametrize("verb", FENCED)
def test_a_claim_on_a_deleted_job_is_refused(queue, verb):  # B27 R267
    job = claimed(queue)
    services.purge(queue.name)

    with refused(ClaimLost if verb == "touch" else JobNotFound):
        FENCED[verb](job)


@pytest.mark.parametrize("verb", ("complete", "fail"))
def test_a_claim_whose_lease_ran_out_is_lost(queue, verb):  # B27 B33
    sent(queue)
    (job,) = services.fetch(queue.name, lease=60)
    in_the_past(job, "lease_until")
    urgent = sent(queue, priority=9)
    assert services.fetch(queue.name) == [urgent]
    assert (now(job).state, now(job).retry_count) == ("retry", 0)

    with refused(ClaimLost):
        FENCED[verb](job)


def test_a_batch_lists_the_claims_that_were_lost(queue):  # B27 I7
    old = claimed(queue)
    services.give_back(old, "drained")
    services.fetch(queue.name)
    good, bad = claimed(queue), claimed(queue)

    finished = services.finish_many([(good, 1), (old, 2)], [(bad, "boom")])

    assert (finished.completed, finished.lost, finished.busy) == ([good.pk], [old.pk], [])
    assert [failure.id for failure in finished.failed] == [bad.pk]
    assert (now(good).output, now(old).output, now(old).state) == (1, None, "active")


def test_a_batch_stops_what_failed_after_its_cancellation_was_asked_for(fifo_queue):  # R258 R271
    job, later = claimed(fifo_queue, singleton_key="a"), sent(fifo_queue, singleton_key="a")
    services.cancel([job.pk])

    finished = services.finish_many(failed=[(job, ValueError("half way"))])

    assert (finished.stopped, finished.failed, finished.lost) == ([job.pk], [], [])
    assert (now(job).state, now(job).error) == ("stopped", "ValueError: half way")
    assert [one.pk for one in services.fetch(fifo_queue.name)] == [later.pk]


def test_a_batch_waits_for_a_locked_row_at_most_an_hour(queue):
    job = claimed(queue)
    with refused(InvalidOption):
        services.finish_many([(job, 1)], lock_timeout=3601)

    assert services.finish_many([(job, 1)], lock_timeout=3600).completed == [job.pk]


def test_a_batch_that_can_be_read_only_once_is_refused(queue):
    job = claimed(queue)

    with refused(InvalidOption):
        services.finish_many(iter([(job, 1)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("whole", (True, False))
def test_a_job_that_is_handed_over_is_read_whole_or_as_far_as_a_worker_needs_it(fifo_queue, whole):
    job = claimed(fifo_queue, singleton_key="a")
    sent(fifo_queue, {"n": 2}, singleton_key="a", priority=3)

    (handed_over,) = services.finish_many([(job, None)], hand_over=True, whole=whole).next

    assert handed_over.data == {"n": 2}
    assert ("priority" in handed_over.get_deferred_fields()) == (not whole)


def test_a_batch_of_nothing_is_nothing(queue):
    before = snapshot()

    finished = services.finish_many()

    assert finished == services.Finished()
    assert snapshot() == before


@pytest.mark.django_db(transaction=True)
def test_of_many_who_complete_a_job_at_once_one_does(queue, race):  # R133 R267
    job = claimed(queue)

    def try_it() -> bool:
        try:
            services.complete(job.pk)
        except InvalidTransition:
            return False
        return True

    assert sorted(race(6, try_it)) == [False] * 5 + [True]


@pytest.mark.django_db(transaction=True)
def test_cancelling_and_completing_at_once_are_both_told_what_happened(queue, race):  # R133 R243 R276
    for _ in range(5):
        job = claimed(queue)

        _, cancellation = race(2, lambda job=job: services.complete(job), lambda job=job: services.cancel(job.pk))

        stored = now(job)
        assert stored.state == "completed"
        assert [*cancellation.cancelled, *cancellation.unknown] == [job.pk]
        assert (stored.cancel_requested_at is not None) == (cancellation.cancelled == [job.pk])


def test_completing_twice_names_both_states(queue):  # R246 R312
    job = claimed(queue)
    services.complete(job)

    with refused(InvalidTransition) as caught:
        services.complete(job)

    assert str(caught.value).count("completed") >= 2
    assert Job.objects.get().state == "completed"
