"""One id sent to two queues at once: one job is stored, and the other sender is told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction

from django_jobqueue import services
from django_jobqueue.engine.given_ids import MOST_LOCKED
from django_jobqueue.exceptions import DuplicateJob
from django_jobqueue.models import Job, Queue

from .race_lab import RACE_FACTOR
from .sessions import Session, scalar

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

SENDERS = 50
LOCKS_HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
STRICT = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture(params=["in order", "reversed"])
def queues(request: pytest.FixtureRequest, queue: Queue, fifo_queue: Queue) -> tuple[Queue, Queue]:
    """The queue of the first sender and that of the second."""
    return (queue, fifo_queue) if request.param == "in order" else (fifo_queue, queue)


def send(queue: Queue, id: UUID, **options: Any) -> Job | None:
    job: Job | None = services.send(queue.name, {"queue": queue.name}, id=id, singleton_key=str(id), **options)
    return job


def send_batch(queue: Queue, *ids: UUID, **options: Any) -> list[UUID | None]:
    return services.send_many(queue.name, [{"id": id, "singleton_key": str(id)} for id in ids], **options)


def outcome_of(work: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What a send came to, in a transaction that works afterwards."""
    try:
        found = work(*args, **options)
        outcome = "nothing" if found in (None, [None]) else "sent"
    except DuplicateJob:
        outcome = "DuplicateJob"
    assert scalar("SELECT count(*) FROM jobqueue_queue") > 0
    return outcome


def locks_held() -> int:
    return int(scalar(LOCKS_HELD))


# -------------------------------------------------------------------------------------- the second waits and is told


@pytest.mark.parametrize("work", (send, send_batch))
@pytest.mark.parametrize("is_callers", (True, False))
@pytest.mark.parametrize(("on_duplicate", "told"), ((None, "DuplicateJob"), ("ignore", "nothing"), ("return", "sent")))
def test_the_second_sender_waits_for_the_first_and_is_refused(
    queues, other: Session, third: Session, work, is_callers, on_duplicate, told
):  # F82 B30
    id = uuid4()
    other.begin()
    other.run(send, queues[0], id)
    if is_callers:
        third.begin()

    sending = third.start_blocked(outcome_of, work, queues[1], id, on_duplicate=on_duplicate)
    other.commit()
    outcome = sending.result(10)
    if is_callers:
        third.commit()

    assert outcome == told
    assert Job.objects.get().queue_id == queues[0].name


@pytest.mark.parametrize("work", (send, send_batch))
@pytest.mark.parametrize("on_duplicate", (None, "ignore", "return"))
def test_the_second_is_stored_when_the_first_is_rolled_back(
    queues, other: Session, third: Session, work, on_duplicate
):  # F82 B30
    id = uuid4()
    other.begin()
    other.run(send_batch, queues[0], id)

    sending = third.start_blocked(outcome_of, work, queues[1], id, on_duplicate=on_duplicate)
    other.rollback()

    assert sending.result(10) == "sent"
    assert Job.objects.get().queue_id == queues[1].name


def test_the_second_is_given_the_job_of_the_first(queues, other: Session, third: Session):  # F82 B32
    id = uuid4()
    other.begin()
    first = other.run(send, queues[0], id)

    sending = third.start_blocked(send, queues[1], id, on_duplicate="return")
    other.commit()
    found = sending.result(10)

    assert found is not None
    assert found == first
    assert found.data == {"queue": queues[0].name}


def test_a_batch_names_the_id_that_another_queue_took_meanwhile(queues, other: Session, third: Session):  # F82
    taken, free = uuid4(), uuid4()
    other.begin()
    other.run(send, queues[0], taken)

    sending = third.start_blocked(send_batch, queues[1], free, taken)
    other.commit()

    with pytest.raises(DuplicateJob, match=f"a job with the id {taken} exists already"):
        sending.result(10)
    assert Job.objects.get().pk == taken


# ------------------------------------------------------------------------------------------------------------ races


@pytest.mark.parametrize("on_duplicate", (None, "return"))
@pytest.mark.parametrize("work", (send, send_batch))
def test_of_fifty_sends_of_one_id_to_two_queues_one_is_stored(
    queue, fifo_queue, race, work, on_duplicate
):  # F82 G10 B30
    id = uuid4()

    outcomes = race(
        SENDERS,
        lambda: outcome_of(work, queue, id, on_duplicate=on_duplicate),
        lambda: outcome_of(work, fifo_queue, id, on_duplicate=on_duplicate),
    )

    refused = "DuplicateJob" if on_duplicate is None else "sent"
    assert Counter(outcomes) == Counter(["sent", *[refused] * (SENDERS - 1)])
    assert Job.objects.count() == 1


@pytest.mark.parametrize("on_duplicate", (None, "ignore"))
def test_batches_of_the_same_ids_in_opposite_orders_never_deadlock(queue, fifo_queue, race, on_duplicate):  # F82
    start, rounds = Barrier(2, timeout=30), 10 * RACE_FACTOR
    batches = [[uuid4() for _ in range(60)] for _ in range(rounds)]

    def send_batches(queue: Queue, step: int) -> list[str]:
        scalar("SELECT set_config('deadlock_timeout', '20ms', false)")  # a deadlock shows sooner
        outcomes = []
        for batch in batches:
            start.wait()
            with transaction.atomic():  # a caller's, which is not run again after a deadlock
                outcomes.append(outcome_of(send_batch, queue, *batch[::step], on_duplicate=on_duplicate))
        return outcomes

    outcomes = race(2, lambda: send_batches(queue, 1), lambda: send_batches(fifo_queue, -1))

    told = ["DuplicateJob", "sent"] if on_duplicate is None else ["sent", "sent"]
    assert [sorted(pair) for pair in zip(*outcomes, strict=True)] == [told] * rounds
    assert Counter(Job.objects.values_list("pk", flat=True)) == Counter(id for batch in batches for id in batch)


def test_a_batch_waits_for_ids_in_one_order_whatever_the_order_given(queue, fifo_queue, session):  # F82
    holder, first, second = session(), session(), session()
    ids = by_lock([uuid4() for _ in range(3)])
    for sender in (holder, first, second):
        sender.begin()
    holder.run(send, queue, ids[1])
    sending = [
        first.start_blocked(outcome_of, send_batch, queue, *ids),
        second.start_blocked(outcome_of, send_batch, fifo_queue, *reversed(ids)),
    ]

    holder.rollback()
    assert sending[0].result(10) == "sent"
    first.commit()

    assert sending[1].result(10) == "DuplicateJob"


def by_lock(ids: list[UUID]) -> list[UUID]:
    """These ids in the order of their locks."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM unnest(%s::uuid[]) g(id) ORDER BY hashtextextended('jobqueue id ' || id, 0)", [ids]
        )
        return [id for (id,) in cursor.fetchall()]


# ---------------------------------------------------------------------------------------- what is locked, and what not


@pytest.mark.parametrize(("number", "waits"), ((MOST_LOCKED, True), (MOST_LOCKED + 1, False)))
def test_larger_batches_only_look(queue, fifo_queue, other: Session, third: Session, number, waits):  # B30
    taken = uuid4()
    other.begin()
    other.run(send, queue, taken)

    sending = third.start(outcome_of, send_batch, fifo_queue, *[uuid4() for _ in range(number - 1)], taken)
    third.until_done_or_waiting(sending)
    assert sending.done() != waits
    other.commit()

    assert sending.result(10) == ("DuplicateJob" if waits else "sent")
    assert outcome_of(send_batch, fifo_queue, *[uuid4() for _ in range(number - 1)], taken) == "DuplicateJob"


@pytest.mark.parametrize("isolation", STRICT)
@pytest.mark.parametrize("work", (send, send_batch))
def test_a_stricter_transaction_locks_nothing_and_looks(queue, fifo_queue, other: Session, work, isolation):  # B30
    known = uuid4()
    send(queue, known)
    other.begin(isolation)

    assert other.run(outcome_of, work, fifo_queue, known) == "DuplicateJob"
    assert other.run(outcome_of, work, fifo_queue, uuid4()) == "sent"

    assert other.run(locks_held) == 0


def test_a_send_without_an_id_of_its_own_takes_no_lock_and_no_further_statement(
    queue, other: Session, django_assert_num_queries
):  # B30
    with transaction.atomic():
        services.send(queue.name, singleton_key="warmed up")
        with django_assert_num_queries(1):
            services.send(queue.name, singleton_key="a")
        services.send_many(queue.name, [{"singleton_key": "b"}, {}])

        assert locks_held() == 0


def test_each_given_id_is_locked_until_the_transaction_ends(queue):  # B30
    with transaction.atomic():
        send(queue, uuid4())
        send_batch(queue, uuid4(), uuid4())
        assert locks_held() == 3

    assert locks_held() == 0


def test_an_id_that_a_job_has_is_not_locked(queue, fifo_queue):
    """So transactions that send known ids again, in any order, neither wait for each other nor deadlock."""
    known = uuid4()
    send(queue, known)

    with transaction.atomic():
        assert outcome_of(send, fifo_queue, known) == "DuplicateJob"
        assert outcome_of(send_batch, fifo_queue, known, on_duplicate="ignore") == "nothing"
        assert locks_held() == 0


def test_an_id_that_was_not_locked_stays_refused_when_its_job_is_deleted_meanwhile(queue, fifo_queue, other: Session):
    """Stored without its lock, it could be stored twice."""
    known = uuid4()
    job = send(queue, known)
    assert job is not None

    def deletes_it_after_the_locking(execute: Any, sql: str, *args: Any) -> Any:
        found = execute(sql, *args)
        if "jobqueue id " in sql:
            other.run(Job.objects.filter(pk=known)._raw_delete, "default")
        return found

    with transaction.atomic(), connection.execute_wrapper(deletes_it_after_the_locking):
        assert outcome_of(send_batch, fifo_queue, known, on_duplicate="ignore") == "nothing"

    assert not Job.objects.exists()


def test_ids_are_locked_also_where_a_message_holds_one_statement(queue, fifo_queue, other: Session, third: Session):
    """With parameters that the server binds."""
    id = uuid4()
    other.begin()
    other.run(send, queue, id)
    third.run(bind_on_the_server)

    sending = third.start_blocked(outcome_of, send, fifo_queue, id)
    other.commit()

    assert sending.result(10) == "DuplicateJob"


def bind_on_the_server() -> None:
    from django.db.backends.postgresql.base import ServerBindingCursor

    connection.connection.cursor_factory = ServerBindingCursor
