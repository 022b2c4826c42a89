"""Dead letters return to the queues they came from: once, in order, and without losing any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation, Queue
from django_jobqueue.services.operations import advance_operations, counts_of
from django_jobqueue.signals import job_sent
from django_jobqueue.states import REDRIVABLE, Hold, JobState
from tests.factories import QueueFactory
from tests.past import ago, left_alone, reread, rewrite

from .lives import job_in, sent, snapshot

OPTIONS: dict[str, Any] = {
    "name": "ship",
    "priority": 5,
    "tags": ["x"],
    "group_key": "g",
    "retry_delay": 7,
    "retry_backoff": True,
    "retry_delay_max": 70,
    "expire_in_seconds": 60,
    "heartbeat_seconds": 15,
    "retention_seconds": 120,
    "delete_after_seconds": 240,
    "delete_failed_after_seconds": 480,
}


@pytest.fixture
def dead(db: None) -> Queue:
    return QueueFactory(name="dead")


@pytest.fixture
def orders(dead: Queue) -> Queue:
    return QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=dead, retry_limit=0)


@pytest.fixture
def mails(dead: Queue) -> Queue:
    return QueueFactory(name="mails", dead_letter=dead, retry_limit=0)


def fail_one(queue: Queue, data: Any = None, **options: Any) -> Job:
    """A job that failed for good, so that there is a dead letter of it."""
    job = sent(queue, data, **options)
    (fetched,) = services.fetch(queue.name)
    assert fetched == job
    services.fail(fetched, "boom")
    return job


def letter_of(job: Job) -> Job:
    return Job.objects.get(queue="dead", source_id=job.pk)


def waiting(queue: Queue) -> list[Any]:
    """The data of the waiting jobs, in the order they were sent."""
    return list(Job.objects.in_queue(queue.name).eligible().order_by("seq").values_list("data", flat=True))


def letters() -> list[Any]:
    return list(Job.objects.in_queue("dead").order_by("seq").values_list("source_id", flat=True))


def counts(redriven: services.Redriven) -> tuple[int, int, int, int]:
    assert len(redriven) == redriven.retried + redriven.sent + redriven.removed
    return redriven.retried, redriven.sent, redriven.removed, len(redriven.refused)


# ----------------------------------------------------------------------------------------------- the original is there


def test_an_original_that_blocks_its_key_is_retried_in_its_place(orders):
    first, second = fail_one(orders, 1, singleton_key="a"), sent(orders, 2, singleton_key="a")
    letter = letter_of(first)

    redriven = services.redrive("dead")

    assert counts(redriven) == (1, 0, 0, 0)
    assert redriven.became == {letter.pk: first.pk}
    assert letters() == []
    assert reread(first).state == JobState.RETRY
    assert services.blocked_keys("orders") == []
    assert services.fetch("orders", 10) == [first]
    assert reread(second).hold in (None, Hold.LANE)


def test_the_retried_original_keeps_its_data_and_gets_one_more_attempt(orders):
    job = fail_one(orders, {"n": 1}, singleton_key="a")

    services.redrive("dead")

    (fetched,) = services.fetch("orders")
    assert (fetched.data, fetched.attempt, fetched.retry_limit) == ({"n": 1}, 2, 1)
    services.fail(fetched, "again", for_good=True)
    assert letters() == [job.pk]


def test_an_original_of_a_queue_without_order_is_retried_as_well(mails):
    job = fail_one(mails)

    assert counts(services.redrive("dead")) == (1, 0, 0, 0)
    assert reread(job).state == JobState.RETRY


def test_an_expired_original_is_retried(mails):
    job = fail_one(mails)
    rewrite(job, state=JobState.EXPIRED)

    services.redrive("dead")

    assert reread(job).state == JobState.RETRY


@pytest.mark.parametrize("state", (JobState.RETRY, JobState.ACTIVE, JobState.COMPLETED))
def test_nothing_is_run_twice_if_the_original_was_retried_already(mails, state):
    job = fail_one(mails)
    services.retry(job.pk)
    if state != JobState.RETRY:
        (fetched,) = services.fetch("mails")
    if state == JobState.COMPLETED:
        services.complete(fetched)

    redriven = services.redrive("dead")

    assert counts(redriven) == (0, 0, 1, 0)
    assert letters() == []
    assert reread(job).state == state
    assert Job.objects.count() == 1


def test_a_letter_whose_original_is_being_cancelled_is_left(mails):
    job = fail_one(mails)
    services.retry(job.pk)
    services.fetch("mails")
    services.cancel(job.pk)

    redriven = services.redrive("dead")

    assert list(redriven.refused.values()) == [f"its original {job.pk} is being cancelled"]
    assert letters() == [job.pk]


def test_an_original_whose_slot_is_taken_is_left_with_its_letter(dead):
    queue = QueueFactory(name="one", policy="exclusive", dead_letter=dead, retry_limit=0)
    job = fail_one(queue, singleton_key="a")
    other = sent(queue, singleton_key="a")

    redriven = services.redrive("dead")

    assert list(redriven.refused.values()) == [f"the place of its original is taken by job {other.pk}"]
    assert letters() == [job.pk]
    assert reread(job).state == JobState.FAILED


def test_two_letters_of_one_original_retry_it_once(mails):
    job = fail_one(mails)
    services.retry(job.pk)
    services.fail(services.fetch("mails")[0], "again", for_good=True)
    assert letters() == [job.pk, job.pk]

    assert counts(services.redrive("dead")) == (1, 0, 1, 0)
    assert letters() == []
    assert reread(job).retry_limit == 2


# ------------------------------------------------------------------------------------------------- the original is gone


@pytest.mark.parametrize("end", ("skip", "delete"))
def test_a_new_job_goes_to_the_end_of_the_key_if_the_original_was_skipped_or_deleted(orders, end):
    job = fail_one(orders, 1, singleton_key="a")
    sent(orders, 2, singleton_key="a")
    services.skip(job.pk, reason="later") if end == "skip" else services.delete(job.pk)

    letter = letter_of(job)
    redriven = services.redrive("dead")

    assert counts(redriven) == (0, 1, 0, 0)
    assert letters() == []
    assert waiting(orders) == [2, 1]
    (second,) = services.fetch("orders", 10)
    assert second.data == 2
    services.complete(second)
    (new,) = services.fetch("orders", 10)
    assert (new.data, new.singleton_key, new.attempt) == (1, "a", 1)
    found = reread(new)
    assert (found.source_id, found.source_queue, found.source_key) == (job.pk, "orders", "a")
    assert redriven.became == {letter.pk: new.pk}


def test_the_new_job_has_everything_that_the_original_had(mails):
    job = fail_one(mails, {"n": 1}, retry_limit=0, **OPTIONS)
    services.delete(job.pk)

    services.redrive("dead")

    new = Job.objects.get(queue="mails")
    assert (new.data, new.state, new.attempt, new.retry_count) == ({"n": 1}, JobState.CREATED, 0, 0)
    assert {name: getattr(new, name) for name in OPTIONS} == OPTIONS


def test_new_jobs_have_the_order_of_the_letters(orders):
    for n in range(5):
        services.delete(fail_one(orders, n, singleton_key="a").pk)

    redriven = services.redrive("dead")

    assert redriven.sent == 5
    assert waiting(orders) == [0, 1, 2, 3, 4]
    seqs = list(Job.objects.in_queue("orders").order_by("seq").values_list("seq", "position"))
    assert all(seq == position for seq, position in seqs)


def test_two_letters_of_one_job_send_it_once_with_the_latest_data(mails):
    job = fail_one(mails, {"n": 1})
    services.retry(job.pk, data={"n": 2})
    services.fail(services.fetch("mails")[0], "again", for_good=True)
    services.delete(job.pk)

    assert counts(services.redrive("dead")) == (0, 1, 1, 0)
    assert waiting(mails) == [{"n": 2}]


def test_two_letters_of_one_job_send_it_once_also_one_after_the_other(mails):
    job = fail_one(mails)
    services.retry(job.pk)
    services.fail(services.fetch("mails")[0], "again", for_good=True)
    services.delete(job.pk)

    assert counts(services.redrive("dead", limit=1)) == (0, 1, 0, 0)
    assert counts(services.redrive("dead")) == (0, 0, 1, 0)
    assert len(waiting(mails)) == 1


def test_a_letter_whose_new_job_was_skipped_is_left(mails):
    job = fail_one(mails)
    services.retry(job.pk)
    services.fail(services.fetch("mails")[0], "again", for_good=True)
    services.delete(job.pk)
    services.redrive("dead", limit=1)
    (new,) = Job.objects.in_queue("mails")
    services.cancel(new.pk)

    redriven = services.redrive("dead")

    assert list(redriven.refused.values()) == [f"it was sent again before, as job {new.pk}, which is cancelled"]


def test_a_new_job_that_fails_again_can_be_redriven_again(mails):
    job = fail_one(mails)
    for number in range(3):
        services.delete(job.pk)
        assert services.redrive("dead").sent == 1, number
        (job,) = services.fetch("mails")
        services.fail(job, "again")
        assert letters() == [job.pk]


def test_a_letter_whose_slot_is_taken_is_left(dead):
    queue = QueueFactory(name="one", policy="exclusive", dead_letter=dead, retry_limit=0)
    job = fail_one(queue, singleton_key="a")
    services.delete(job.pk)
    sent(queue, singleton_key="a")

    redriven = services.redrive("dead")

    assert list(redriven.refused.values()) == ["its place in the queue 'one' is taken by another job"]
    assert letters() == [job.pk]


def test_a_letter_whose_queue_was_deleted_is_left(mails):
    job = fail_one(mails)
    services.delete_queue("mails")
    services.create_queue("others", dead_letter="dead")

    redriven = services.redrive("dead")

    (why,) = redriven.refused.values()
    assert why == "its queue 'mails' does not exist any more: redrive it to another queue"
    assert letters() == [job.pk]


def test_the_signal_of_a_send_is_sent_for_new_jobs(mails, django_capture_on_commit_callbacks):
    services.delete(fail_one(mails).pk)
    heard: list[tuple[str, int]] = []

    def hear(queue: str, ids: list[Any], **_: Any) -> None:
        heard.append((queue, len(ids)))

    job_sent.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            services.redrive("dead")
    finally:
        job_sent.disconnect(hear)
    assert heard == [("mails", 1)]


# ----------------------------------------------------------------------------------------------- which letters it takes


@pytest.mark.parametrize("state", JobState)
def test_letters_that_wait_or_failed_are_redriven_and_no_others(mails, dead, state):
    job = fail_one(mails)
    where = {"source_id": job.pk, "source_queue": "mails"}
    Job.objects.in_queue("dead").delete()
    letter = rewrite(job_in(state, dead), **where)

    redriven = services.redrive("dead")

    assert redriven.moved == ([letter.pk] if state in REDRIVABLE else [])
    assert not redriven.refused
    assert Job.objects.filter(pk=letter.pk).exists() == (state not in REDRIVABLE)
    assert (reread(job).state == JobState.RETRY) == (state in REDRIVABLE)


def test_a_letter_that_a_worker_fetched_meanwhile_is_refused(mails):
    job = fail_one(mails)
    operation = services.begin_operation("redrive", ids=[letter_of(job).pk], operator="ann")
    services.fetch("dead")

    operation = services.advance_operation(operation)

    assert list(operation.details["refused"].values()) == ["it is active"]
    assert reread(job).state == JobState.FAILED


@pytest.mark.django_db(transaction=True)
def test_a_letter_that_came_after_the_confirmation_is_left_and_counted(mails):  # B43
    first = fail_one(mails)
    operation = services.begin_operation("redrive", selection={"queue": "dead"}, operator="ann")
    second = fail_one(mails)

    operation = services.advance_operation(operation)

    assert (operation.moved, operation.details["came_later"]) == (1, 1)
    assert (reread(first).state, reread(second).state) == (JobState.RETRY, JobState.FAILED)


def test_only_letters_of_one_queue(mails, orders):
    mail, order = fail_one(mails), fail_one(orders, singleton_key="a")

    assert services.redrive("dead", source_queue="mails").retried == 1
    assert letters() == [order.pk]
    assert reread(mail).state == JobState.RETRY


def test_a_limit_takes_the_oldest_letters(mails):
    jobs = [fail_one(mails) for _ in range(3)]

    assert len(services.redrive("dead", limit=2)) == 2
    assert letters() == [jobs[2].pk]


def test_a_second_redrive_moves_nothing(mails):
    fail_one(mails)
    services.redrive("dead")
    before = snapshot()

    assert counts(services.redrive("dead")) == (0, 0, 0, 0)
    assert snapshot() == before


def test_more_letters_than_one_batch_takes(dead, mails, orders):
    failed = {"state": JobState.FAILED, "finalized_at": ago(hours=1)}
    there = [Job(queue=orders, policy=orders.policy, singleton_key=f"k{n}", **failed) for n in range(300)]
    Job.objects.bulk_create(there)
    sources = [(uuid7(), "mails", "") for _ in there] + [(job.pk, "orders", job.singleton_key) for job in there]
    Job.objects.bulk_create(
        Job(queue=dead, data=n, source_id=id, source_queue=name, source_key=key)
        for n, (id, name, key) in enumerate(sources)
    )
    assert len(letters()) == 600

    assert counts(services.redrive("dead")) == (300, 300, 0, 0)
    assert letters() == []
    assert waiting(mails) == list(range(300))
    assert Job.objects.in_queue("orders").in_state(JobState.RETRY).count() == 300


def test_an_ordered_dead_letter_queue_is_emptied_and_its_lanes_go_on(db):
    dead = QueueFactory(name="dead", policy="key_strict_fifo")
    queue = QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=dead, retry_limit=0)
    services.delete(fail_one(queue, 1, singleton_key="a").pk)
    second = fail_one(queue, 2, singleton_key="a")
    services.fail(services.fetch("dead")[0], "dead again", for_good=True)  # blocks the key of the second letter
    assert services.fetch("dead") == []

    services.redrive("dead", limit=1)

    assert services.fetch("dead") == [letter_of(second)]


# ----------------------------------------------------------------------------------------------------- another queue


def test_letters_can_go_to_another_queue(mails):
    QueueFactory(name="repaired")
    job = fail_one(mails, {"n": 1})

    assert counts(services.redrive("dead", to="repaired")) == (0, 1, 0, 0)

    (new,) = services.fetch("repaired")
    assert new.data == {"n": 1}
    assert reread(new).source_id == job.pk
    assert reread(job).state == JobState.FAILED


def test_a_letter_whose_original_blocks_its_key_does_not_go_to_another_queue(orders):
    QueueFactory(name="repaired")
    fail_one(orders, singleton_key="a")

    (why,) = services.redrive("dead", to="repaired").refused.values()

    assert why == ("its original still blocks the key 'a' of 'orders': skip that first, or redrive to 'orders'")


@pytest.mark.parametrize("state", (JobState.RETRY, JobState.ACTIVE, JobState.COMPLETED))
def test_a_letter_whose_original_runs_again_does_not_go_to_another_queue(mails, state):
    QueueFactory(name="repaired")
    job = fail_one(mails)
    services.retry(job.pk)
    if state != JobState.RETRY:
        (fetched,) = services.fetch("mails")
    if state == JobState.COMPLETED:
        services.complete(fetched)

    (why,) = services.redrive("dead", to="repaired").refused.values()

    assert why == f"its original {job.pk} is {state}"


def test_to_the_queue_it_came_from_is_the_same_as_without(mails):
    job = fail_one(mails)

    assert services.redrive("dead", to="mails").retried == 1
    assert reread(job).state == JobState.RETRY


def test_a_letter_without_a_key_does_not_go_to_an_ordered_queue(mails):
    QueueFactory(name="repaired", policy="key_strict_fifo")
    fail_one(mails)

    (why,) = services.redrive("dead", to="repaired").refused.values()

    assert why == "the queue 'repaired' needs a key, and it has none"


def test_a_letter_that_went_to_another_queue_is_not_retried_at_home_too(mails):
    QueueFactory(name="repaired")
    job = fail_one(mails)
    services.retry(job.pk)
    services.fail(services.fetch("mails")[0], "again", for_good=True)
    services.redrive("dead", to="repaired", limit=1)

    (why,) = services.redrive("dead").refused.values()

    assert why.startswith("it was sent again before, as job ")
    assert reread(job).state == JobState.FAILED


def test_a_job_that_is_no_copy_is_left_unless_a_queue_is_given(mails, dead):
    job = sent(dead, {"n": 1}, singleton_key="a")

    assert list(services.redrive("dead").refused.values()) == [
        "it is no copy of another job: redrive it to a queue that you name"
    ]
    assert services.redrive("dead", to="mails").sent == 1
    (new,) = services.fetch("mails")
    found = reread(new)
    assert (found.data, found.singleton_key) == ({"n": 1}, "a")
    assert (found.source_id, found.source_queue, found.source_key) == (job.pk, "dead", "a")


def test_a_letter_of_a_letter_goes_back_one_queue(mails, dead):
    services.create_queue("buried")
    services.update_queue("dead", dead_letter="buried")
    fail_one(mails)
    (letter,) = services.fetch("dead")
    services.fail(letter, "again", for_good=True)

    assert counts(services.redrive("buried")) == (1, 0, 0, 0)
    assert reread(letter).state == JobState.RETRY


def test_a_letter_and_its_own_letter_are_not_moved_together(mails, dead):
    services.create_queue("buried")
    services.update_queue("dead", dead_letter="buried")
    job = fail_one(mails)
    (letter,) = services.fetch("dead")
    services.fail(letter, "again", for_good=True)
    second = Job.objects.get(queue="buried")

    operation = services.begin_operation("redrive", ids=[letter.pk, second.pk], operator="ann")
    operation = services.advance_operation(operation)

    assert operation.details["refused"] == {
        str(second.pk): f"its original {letter.pk} is a dead letter itself, and was selected too"
    }
    assert reread(job).state == JobState.RETRY


# -------------------------------------------------------------------------------------------------------- wrong input


def test_a_queue_without_dead_letters_is_refused(mails, queue):
    sent(queue)

    with pytest.raises(InvalidOption, match=r"keeps no dead letters: .* The dead-letter queues are dead\."):
        services.redrive(queue.name)


def test_a_queue_that_no_queue_names_any_more_is_redriven_if_it_has_copies(mails, dead):
    job = fail_one(mails)
    plain = sent(dead)
    services.update_queue("mails", dead_letter=None)

    redriven = services.redrive("dead", to="mails")

    assert reread(job).state == JobState.RETRY
    assert redriven.refused == {plain.pk: "it is no dead letter: it is no copy of a job of another queue"}


def test_a_job_that_was_sent_to_its_own_queue_again_is_no_dead_letter(mails):
    job = rewrite(sent(mails), source_id=sent(mails).pk, source_queue="mails")

    operation = services.begin_operation("redrive", ids=[job.pk], operator="ann")
    operation = services.advance_operation(operation)

    assert list(operation.details["refused"].values()) == [
        "it is no dead letter: it is no copy of a job of another queue"
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    (
        (lambda: services.redrive("ded"), QueueNotFound),
        (lambda: services.redrive("dead", to="mials"), QueueNotFound),
        (lambda: services.redrive("dead", source_queue="mials"), QueueNotFound),
        (lambda: services.redrive("dead", to="dead"), InvalidOption),
        (lambda: services.redrive("dead", limit=0), InvalidOption),
        (lambda: services.redrive("dead", operator="x" * 300), InvalidOption),
        (lambda: services.begin_operation("retry", selection={"queue": "dead"}, operator="ann", to="x"), InvalidOption),
        (lambda: services.begin_operation("redrive", selection={"queue": "dead"}, operator="a", to="x"), QueueNotFound),
    ),
)
def test_wrong_input_changes_nothing(mails, call: Callable[[], object], error):
    fail_one(mails)
    before = snapshot()

    with pytest.raises(error):
        call()

    assert snapshot() == before


def test_letters_of_a_queue_that_was_deleted_can_be_named(mails, dead):
    fail_one(mails)
    services.delete_queue("mails")
    services.create_queue("mails2", dead_letter="dead")

    assert services.redrive("dead", source_queue="mails", to="mails2").sent == 1


# ------------------------------------------------------------------------------------------------ the operation of it


def test_it_is_recorded_with_its_operator_its_reason_and_what_became_of_the_letters(mails):
    jobs = [fail_one(mails) for _ in range(3)]
    services.delete(jobs[0].pk)
    services.retry(jobs[1].pk)

    services.redrive("dead", operator="ann", reason="the printer works again")

    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.reason) == ("redrive", "ann", "the printer works again")
    assert (operation.state, operation.moved, operation.refused) == ("done", 3, 0)
    assert counts_of(operation) == {
        "retried": 1,
        "sent": 1,
        "removed": 1,
    }
    assert operation.selection["queue"] == "dead"


def test_it_is_not_recorded_if_there_is_nothing_to_redrive(mails):
    services.redrive("dead", operator="ann")

    assert not Operation.objects.exists()


def test_a_redrive_that_was_interrupted_is_continued_by_another_process(mails):
    fail_one(mails)
    left_alone(services.begin_operation("redrive", selection={"queue": "dead"}, operator="ann", to="mails"))

    assert advance_operations() == {"redrive": 1}
    assert letters() == []


# -------------------------------------------------------------------------------------------------- nothing is lost


@contextmanager
def failing(event: str) -> Iterator[None]:
    """The database refuses this on the job table, as if the server stopped in the middle of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION fail_here() RETURNS trigger AS $$ BEGIN RAISE 'stopped here'; END $$ LANGUAGE plpgsql"
        )
        cursor.execute(
            f"CREATE TRIGGER fail_here BEFORE {event} ON jobqueue_job FOR EACH ROW EXECUTE FUNCTION fail_here()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER fail_here ON jobqueue_job")
        cursor.execute("DROP FUNCTION fail_here")


@pytest.mark.parametrize("event", ("INSERT", "UPDATE", "DELETE"))
def test_a_failure_in_the_middle_changes_nothing(mails, event):
    retried, gone = fail_one(mails), fail_one(mails)
    services.delete(gone.pk)
    before = snapshot()["jobqueue_job"]

    with failing(event), pytest.raises(DatabaseError, match="stopped here"), transaction.atomic():
        services.redrive("dead")

    assert snapshot()["jobqueue_job"] == before
    assert counts(services.redrive("dead")) == (1, 1, 0, 0)
    assert reread(retried).state == JobState.RETRY
