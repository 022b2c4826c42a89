"""One job: what is stored, what is returned, and whose transaction it is."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, timedelta
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, InternalError, connection, transaction
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob, InvalidData, InvalidOption
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .lives import claimed, job_in, now, read_only, refused, rolled_back, sent, snapshot


def test_a_sent_job_is_stored_with_all_its_fields_and_waits(queue):  # R150 R151 R152 R153 R154 R155 R165 R188 R189
    id, due = uuid4(), timezone.now() + timedelta(hours=1)

    job = services.send(
        queue.name, {"a": [1, "é"]}, id=id, name="mail.send", priority=7, singleton_key="k", group_key="g",
        tags=["red", "blue"], start_after=due, retry_limit=5, retry_delay=3, retry_backoff=True, retry_delay_max=60,
        expire_in_seconds=30, heartbeat_seconds=10, retention_seconds=99, delete_after_seconds=0,
    )  # fmt: skip

    assert job is not None
    assert job.pk == id
    stored = Job.objects.get(pk=id)
    assert (stored.state, stored.queue_id, stored.name, stored.data) == (
        "created",
        "work",
        "mail.send",
        {"a": [1, "é"]},
    )
    assert (stored.priority, stored.singleton_key, stored.group_key, stored.tags) == (7, "k", "g", ["red", "blue"])
    assert (stored.retry_limit, stored.retry_delay, stored.retry_backoff, stored.retry_delay_max) == (5, 3, True, 60)
    assert (stored.expire_in_seconds, stored.heartbeat_seconds, stored.retention_seconds) == (30, 10, 99)
    assert (stored.delete_after_seconds, stored.start_after, stored.hold) == (0, due, "until")
    assert abs(timezone.now() - stored.created_at) < timedelta(minutes=1)


def test_a_fresh_job_has_no_history(queue):  # R154 R156 R157 R158 R159 R160 R161 R162 R163
    stored = now(sent(queue))

    assert (stored.tags, stored.error, stored.output, stored.retry_count) == ([], "", None, 0)
    assert (stored.started_at, stored.finalized_at, stored.last_retry_at) == (None, None, None)
    assert (stored.assignee, stored.assigned_at, stored.attempt) == ("", None, 0)


def test_what_send_returns_is_what_is_stored(queue):  # R188 R189
    job = sent(queue, {"a": 1}, name="n", tags=["t"], delay=60, retry_limit=None)

    stored = Job.objects.get(pk=job.pk)

    columns = [field.attname for field in Job._meta.concrete_fields]
    assert {name: getattr(job, name) for name in columns} == {name: getattr(stored, name) for name in columns}


def test_an_id_is_made_when_none_is_given(queue):  # R150
    first, second = sent(queue), sent(queue)

    assert isinstance(first.pk, UUID)
    assert first.pk != second.pk


def test_an_id_may_be_given_as_text(queue):
    id = uuid4()

    assert sent(queue, id=str(id).upper()).pk == id


@pytest.mark.parametrize("data", (None, 0, "", [], {}, False, {"deep": [{"er": None}]}, "é\U0001f600", 2**53 + 1))
def test_data_comes_back_as_it_was_sent(queue, data):  # R153
    job = sent(queue, data)

    assert now(job).data == data
    assert services.fetch(queue.name)[0].data == data


def test_the_status_cannot_be_chosen_by_the_sender(queue):  # R186
    with refused(InvalidOption) as caught:
        services.send(queue.name, state="active")  # type: ignore[call-overload]

    assert caught.value.option == "state"


def test_an_empty_id_is_refused(queue):  # R187 R193 R315
    with refused(InvalidOption) as caught:
        services.send(queue.name, id="")

    assert caught.value.option == "id"


@pytest.mark.parametrize("state", list(JobState))
def test_an_id_that_exists_is_refused_whatever_its_state(queue, state):  # R192 B32
    job = job_in(state, queue)

    with refused(DuplicateJob) as caught:
        services.send(queue.name, id=job.pk)

    assert str(job.pk) in str(caught.value)


def test_an_id_that_exists_in_another_queue_is_refused(queue, fifo_queue):  # R150 R192 B30
    job = sent(queue)

    with refused(DuplicateJob) as caught:
        services.send(fifo_queue.name, id=job.pk, singleton_key="k")

    assert str(job.pk) in str(caught.value)


def test_a_send_is_part_of_the_callers_transaction(queue):  # R191 F28
    with rolled_back():
        sent(queue)

    assert not Job.objects.exists()


def test_a_refused_send_leaves_the_callers_other_work(queue):  # R191 I10
    with transaction.atomic():
        kept = sent(queue)
        with pytest.raises(InvalidData):
            services.send(queue.name, {"a": float("nan")})
        with pytest.raises(DuplicateJob):
            services.send(queue.name, id=kept.pk)
        also = sent(queue)

    assert set(Job.objects.all()) == {kept, also}


def test_a_send_in_an_aborted_transaction_raises_at_once(queue):  # F29
    with rolled_back():
        with connection.cursor() as cursor, suppress(DatabaseError):
            cursor.execute("SELECT 1 / 0")
        with pytest.raises(InternalError, match="aborted"):
            services.send(queue.name)

    assert not Job.objects.exists()


def test_a_storage_error_reaches_the_caller(queue):  # R193 R314
    with pytest.raises(InternalError, match="read-only"), read_only():
        services.send(queue.name)

    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_many_send_at_once_and_every_job_is_stored(queue, race):  # R133 R194
    def send_some() -> list[UUID]:
        return [sent(queue).pk for _ in range(10)]

    ids = [id for some in race(8, send_some) for id in some]

    assert len(ids) == 80
    assert set(Job.objects.values_list("pk", flat=True)) == set(ids)


@pytest.mark.django_db(transaction=True)
def test_one_of_many_sends_with_one_id_wins_and_the_others_are_told(queue, race):  # R133 R192
    id = uuid4()

    def send_it() -> str:
        with transaction.atomic():
            try:
                services.send(queue.name, id=id)
                outcome = "sent"
            except DuplicateJob:
                outcome = "duplicate"
            assert Job.objects.filter(pk=id).count() == 1  # usable, and it sees the winner
        return outcome

    assert sorted(race(8, send_it)) == ["duplicate"] * 7 + ["sent"]


@pytest.mark.django_db(transaction=True)
def test_sends_that_were_committed_one_after_the_other_run_in_that_order(queue, race):  # B28
    jobs = [race(1, lambda: sent(queue))[0] for _ in range(3)]

    assert services.fetch(queue.name, 3) == jobs


def test_jobs_are_fetched_in_the_order_they_were_sent(queue):  # B6
    jobs = [sent(queue) for _ in range(5)]

    assert services.fetch(queue.name, 5) == jobs
    assert [job.seq for job in jobs] == sorted(job.seq for job in jobs)


def test_the_order_of_sends_ignores_the_time_they_were_created(queue):  # B6
    first, second = sent(queue), sent(queue)
    Job.objects.filter(pk=second.pk).update(created_at=timezone.now().astimezone(UTC) - timedelta(days=1))

    assert services.fetch(queue.name, 2) == [first, second]


def test_a_higher_priority_goes_first(queue):  # B6
    low, high = sent(queue, priority=-1), sent(queue, priority=5)

    assert services.fetch(queue.name, 2) == [high, low]


def test_a_failed_job_goes_behind_those_that_wait(queue):  # B6
    failing, waiting = sent(queue), sent(queue)
    services.fail(services.fetch(queue.name)[0], "boom")

    assert services.fetch(queue.name, 2) == [waiting, failing]


def test_a_failed_job_goes_before_what_is_sent_after_its_failure(queue):  # B6
    failing = claimed(queue, priority=0)
    services.fail(failing, "boom")
    late = sent(queue)

    assert services.fetch(queue.name, 2) == [failing, late]


def test_nothing_is_written_by_a_refusal_of_the_policy(exclusive_queue):  # B32 I10
    sent(exclusive_queue)
    before = snapshot()

    with transaction.atomic():
        assert services.send(exclusive_queue.name) is None
        assert snapshot() == before
