"""The claim's number: the fence that also holds when a commit was lost and two claims share an attempt."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.claims import Claim
from django_jobqueue.engine import announcements, workers
from django_jobqueue.exceptions import ClaimLost, InvalidOption
from django_jobqueue.models import Job, Queue

from .lives import now, sent

pytestmark = pytest.mark.django_db

ID = "01a1ea4e-8e3d-7bae-a34d-fa71f72397a3"


def lost_and_claimed_again(queue: Queue, **options: Any) -> tuple[Job, Job]:
    """One job fetched twice with the same attempt, as after a failover to a standby that lacks the first claim."""
    job = sent(queue, **options)
    (first,) = services.fetch(queue.name, worker="w1")
    Job.objects.filter(pk=job.pk).update(state="created", attempt=0, assignee="", started_at=None)
    (second,) = services.fetch(queue.name, worker="w2")
    assert (first.pk, first.attempt) == (second.pk, second.attempt)
    return first, second


FENCED: dict[str, Callable[[Any], object]] = {
    "complete": services.complete,
    "fail": lambda job: services.fail(job, "oops"),
    "stop": services.stop,
    "give_back": lambda job: services.give_back(job, "not now"),
    "mark_unknown_stopped": services.mark_unknown_stopped,
    "set_visibility": lambda job: services.set_visibility(job, 60),
    "set_visibility 0": lambda job: services.set_visibility(job, 0),
}


@pytest.mark.parametrize("verb", FENCED)
def test_a_claim_whose_commit_was_lost_changes_nothing(queue, verb):  # B27 I7 F73
    first, second = lost_and_claimed_again(queue)

    with pytest.raises(ClaimLost):
        FENCED[verb](first)

    assert (now(second).state, now(second).assignee, now(second).lease_until) == ("active", "w2", None)
    FENCED[verb](second)


def test_a_heartbeat_of_a_lost_claim_is_refused(queue):  # I7
    first, second = lost_and_claimed_again(queue, heartbeat_seconds=10)
    before = now(second).heartbeat_at

    with pytest.raises(ClaimLost):
        services.touch(first)

    assert now(second).heartbeat_at == before
    assert services.touch(second) == "active"


def test_a_lost_cancellation_is_not_acknowledged(queue):  # I7
    first, second = lost_and_claimed_again(queue)
    services.cancel([second.pk])

    with pytest.raises(ClaimLost):
        services.acknowledge_cancellation(first, was_executing=True)

    assert now(second).state == "cancelling"
    services.acknowledge_cancellation(second, was_executing=True)


@pytest.mark.parametrize("policy", ("standard", "key_strict_fifo", "singleton"))
def test_a_batch_refuses_lost_claims_and_finishes_the_others(policy):  # I7 G3
    queue = services.create_queue("batch", policy=policy)
    first, second = lost_and_claimed_again(queue, singleton_key="a")
    sent(queue, singleton_key="b")
    (other,) = services.fetch(queue.name)

    finished = services.finish_many([(first, 1), (other, 2)], hand_over=True)

    assert (finished.completed, finished.lost, finished.busy) == ([other.pk], [first.pk], [])
    assert now(second).state == "active"
    assert services.finish_many([(second, 3)]).completed == [second.pk]
    assert now(second).output == 3


def test_whoever_holds_a_job_is_told_of_its_completion_and_not_of_a_lost_claim(
    queue, django_capture_on_commit_callbacks
):
    first, second = lost_and_claimed_again(queue)
    sent(queue)
    (other,) = services.fetch(queue.name)
    told: list[str] = []
    announcements.hold([first.pk], partial(told.append, "lost"))
    announcements.hold([other.pk], partial(told.append, "completed"))

    with django_capture_on_commit_callbacks(execute=True):
        services.finish_many([(first, 1), (other, 2)])

    assert told == ["completed"]
    assert now(second).state == "active"


def test_a_lost_failure_of_a_batch_is_listed(queue):
    first, second = lost_and_claimed_again(queue)

    assert services.finish_many(failed=[(first, "oops")]).lost == [first.pk]
    assert now(second).state == "active"


def test_progress_of_a_lost_claim_is_not_written(queue):
    first, second = lost_and_claimed_again(queue)

    workers.report_progress([(first, 0.9, "old")], using="default")

    assert now(second).progress is None


def test_a_claim_cannot_be_read_back(queue):  # B27
    first, second = lost_and_claimed_again(queue)
    claim = first.claim

    first.refresh_from_db()
    assert first.claim_number == second.held_number  # the column shows the new claim

    assert first.claim == claim
    with pytest.raises(ClaimLost):
        services.complete(first)


def test_a_deferred_column_does_not_renew_a_claim(queue):  # B27
    first, second = lost_and_claimed_again(queue)
    assert first.claim_number == second.held_number  # no fetch reads it, so it is loaded now

    with pytest.raises(ClaimLost):
        services.complete(first)


def test_a_copy_of_a_fetched_job_carries_the_claim(queue):
    sent(queue)
    (job,) = services.fetch(queue.name)

    assert copy.deepcopy(job).claim == pickle.loads(pickle.dumps(job)).claim == job.claim is not None


def test_another_process_finishes_by_the_text_of_a_claim(queue):  # B27
    sent(queue)
    (job,) = services.fetch(queue.name)
    text = str(job.claim)

    assert Claim.parse(text) == job.claim
    services.complete(Claim.parse(text), {"by": "another"})
    assert now(job).output == {"by": "another"}


def test_a_text_of_a_claim_is_fenced(queue):  # B27
    first, second = lost_and_claimed_again(queue)

    for given in (first.claim, str(first.claim)):
        with pytest.raises(ClaimLost):
            services.complete(given)  # type: ignore[arg-type]
        with pytest.raises(ClaimLost):
            services.fail(given, "oops")  # type: ignore[arg-type]
    services.complete(str(second.claim))
    assert now(second).state == "completed"


def test_a_bare_id_is_not_fenced(queue):  # R255
    first, second = lost_and_claimed_again(queue)

    services.complete(first.pk)

    assert now(second).state == "completed"


def test_a_job_that_was_only_read_is_fenced_by_the_attempt_that_was_read(queue):
    sent(queue)
    (job,) = services.fetch(queue.name)
    read = services.get_job(job.pk)
    assert read.claim is None

    services.give_back(job, "not now")
    services.fetch(queue.name)

    with pytest.raises(ClaimLost):
        services.complete(read)
    services.complete(services.get_job(job.pk))


def test_a_late_result_fits_while_the_outcome_is_unknown(queue):  # R244
    sent(queue)
    (job,) = services.fetch(queue.name, worker="w")
    services.mark_worker_unresponsive("w")
    assert now(job).state == "unknown_retry"

    services.complete(job)

    assert now(job).state == "completed"


@pytest.mark.parametrize(
    "text", ("", "x", ID, f"{ID}/1", f"{ID}/1/xyz", f"{ID}/-1/ab", f"{ID}/1/{'f' * 17}", f" {ID}/1/ab", None, 5)
)
def test_what_is_no_text_of_a_claim_is_refused(text):
    with pytest.raises(InvalidOption, match="claim"):
        Claim.parse(text)


def test_a_claim_is_a_value():
    claim = Claim(uuid4(), 1, 5)

    assert {claim: 1}[Claim(claim.job_id, 1, 5)] == 1
    with pytest.raises(FrozenInstanceError):
        claim.attempt = 2  # type: ignore[misc]


def test_each_fetch_and_each_hand_over_draws_a_number():
    queue = services.create_fifo_queue("drawn")
    for _ in range(4):
        sent(queue, singleton_key="a")
    (one,) = services.fetch(queue.name)

    (two,) = services.finish_many([(one, None)], hand_over=True).next
    (three,) = services.finish_many([(two, None)], hand_over=True).next
    services.complete(three)
    (four,) = services.fetch(queue.name)

    numbers = [job.held_number for job in (one, two, three, four)]
    assert len(set(numbers)) == 4
    assert [now(job).claim_number for job in (one, two, three, four)] == numbers


def test_a_handed_over_job_whose_claim_was_lost_is_fenced():  # F73
    queue = services.create_fifo_queue("handed")
    for _ in range(2):
        sent(queue, singleton_key="a")
    (one,) = services.fetch(queue.name)
    (two,) = services.finish_many([(one, None)], hand_over=True).next
    Job.objects.filter(pk=two.pk).update(state="created", attempt=0)
    (again,) = services.fetch(queue.name)

    with pytest.raises(ClaimLost):
        services.complete(two)
    services.complete(again)


def test_of_a_lost_grouped_batch_nothing_goes_back_with_it(queue):  # B19
    for _ in range(2):
        sent(queue, group_key="g")
    first = services.fetch(queue.name, 2, grouping="fill", worker="w")
    Job.objects.update(state="created", attempt=0)
    second = services.fetch(queue.name, 2, grouping="fill", worker="w")

    with pytest.raises(ClaimLost):
        services.fail(first[0], "oops")

    assert [now(job).state for job in second] == ["active", "active"]
    services.fail(second[0], "oops")
    assert [now(job).state for job in second] == ["retry", "retry"]


# --------------------------------------------------------------------------------------------- what workers are told


def test_only_claims_that_a_process_does_not_hold_are_returned(queue):  # B34
    worker = uuid4()
    for _ in range(2):
        sent(queue)
    held, unknown = services.fetch(queue.name, 2, worker="w", incarnation=worker)
    stale = copy.copy(unknown)
    services.give_back(unknown, "not now")
    (unknown,) = services.fetch(queue.name, worker="w", incarnation=worker)

    # It thinks that it holds the second job, but by a claim that was lost. The claim of the row it does not know.
    assert workers.give_back_unheld("w", worker, [held, stale], "unknown", using="default") == 1

    assert [now(job).state for job in (held, unknown)] == ["active", "retry"]


def expires_at(job: Job) -> datetime:
    moment = now(job).expire_at
    assert moment is not None
    return moment


def test_a_late_start_renews_the_deadline_of_claims_that_stand(queue):  # F76
    for _ in range(3):
        sent(queue, expire_in_seconds=60)
    ours, lost, cancelled = services.fetch(queue.name, 3)
    before = expires_at(ours)
    services.complete(lost.pk)
    services.cancel([cancelled.pk])

    assert workers.renew([ours, lost, cancelled], using="default") == [ours]

    assert expires_at(ours) > before
    assert now(lost).state == "completed"


def test_of_a_dead_process_only_the_attempt_that_ran_is_charged(queue):  # F73
    worker = uuid4()
    sent(queue)
    (job,) = services.fetch(queue.name, worker="w", incarnation=worker)
    ran = workers.Running(job.pk, (job.held_number or 0) + 1)  # an older claim of the same job

    workers.recover_dead("w", worker, "died", crashed=[ran], using="default")

    assert (now(job).state, now(job).retry_count) == ("retry", 0)


# --------------------------------------------------------------------------------------------------- durable commits


@pytest.fixture
def forgetful(transactional_db):
    """A session whose commits do not wait for the disk, unless they say so."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
    yield
    connection.close()


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("verb", ("fetch", "complete", "fail", "finish_many"))
@pytest.mark.parametrize("policy", ("standard", "key_strict_fifo"))
@pytest.mark.django_db(transaction=True)
def test_a_claim_or_result_inside_a_callers_transaction_is_durable(forgetful, policy, verb):  # F74
    queue = services.create_queue("durable", policy=policy)
    sent(queue, singleton_key="a")
    jobs = [] if verb == "fetch" else services.fetch(queue.name)
    assert setting() == "off"

    with transaction.atomic():
        sent(queue, singleton_key="b")
        assert setting() == "off"  # a send is the caller's affair
        if verb == "fetch":
            services.fetch(queue.name)
        elif verb == "fail":
            services.fail(jobs[0], "oops")
        elif verb == "finish_many":
            services.finish_many([(jobs[0], None)])
        else:
            services.complete(jobs[0])
        assert setting() == "on"
    assert setting() == "off"


@pytest.mark.parametrize("chosen", ("local", "remote_write", "on", "remote_apply"))
@pytest.mark.django_db(transaction=True)
def test_another_choice_is_kept(queue, chosen):
    sent(queue)
    (job,) = services.fetch(queue.name)

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL synchronous_commit = {chosen}")
        services.complete(job)
        assert setting() == chosen


@pytest.mark.django_db(transaction=True)
def test_own_transactions_of_verbs_are_durable(forgetful):  # F74
    """Their statements set it before they commit: seen by a trigger at the end of each transaction."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE seen (verb text, setting text)")
        cursor.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO seen VALUES (NEW.state, current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON jobqueue_job DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION note()"
        )
    try:
        for policy in ("standard", "key_strict_fifo"):
            queue = services.create_queue(f"own-{policy}", policy=policy)
            for key in "abcd":
                sent(queue, singleton_key=key)
            one, two, three, four = services.fetch(queue.name, 4)
            services.complete(one)
            services.fail(two, "oops")
            services.finish_many([(three, None)], [(four, "oops")])
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT verb, setting FROM seen")
            assert set(cursor.fetchall()) == {("active", "on"), ("completed", "on"), ("retry", "on")}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER note ON jobqueue_job")
            cursor.execute("DROP FUNCTION note; DROP TABLE seen")
