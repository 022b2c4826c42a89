"""The async twins: the same verbs, in the same transaction."""

from __future__ import annotations

from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob, InvalidData, InvalidOption, JobNotFound
from django_jobqueue.models import Job

from .lives import rolled_back, sent

asend = async_to_sync(services.asend)
asend_many = async_to_sync(services.asend_many)
acancel = async_to_sync(services.acancel)
aget_job = async_to_sync(services.aget_job)


def test_a_job_is_sent(queue):  # R188 R189
    job = asend(queue.name, {"a": 1}, tags=["t"], priority=3)

    assert job is not None
    stored = Job.objects.get()
    assert (stored.pk, stored.data, stored.tags, stored.priority) == (job.pk, {"a": 1}, ["t"], 3)


def test_many_are_sent_in_their_order(queue):  # R196
    ids = asend_many(queue.name, [{"data": n} for n in range(3)])

    assert list(Job.objects.order_by("seq").values_list("pk", flat=True)) == ids


def test_jobs_are_cancelled(queue):  # R270
    job = sent(queue)

    assert acancel([job.pk]).cancelled == [job.pk]
    assert Job.objects.get().state == "cancelled"


def test_a_job_is_found(queue):  # R291
    job = sent(queue)

    assert aget_job(str(job.pk)) == job


def test_a_taken_slot_is_none(exclusive_queue):  # B32
    sent(exclusive_queue)

    assert asend(exclusive_queue.name) is None


def test_errors_are_the_same_and_the_transaction_stays_usable(queue):  # R192 R200 R292 B38 I10
    with transaction.atomic():
        job = asend(queue.name)
        assert job is not None
        with pytest.raises(DuplicateJob):
            asend(queue.name, id=job.pk)
        with pytest.raises(DuplicateJob):
            asend_many(queue.name, [{}, {"id": job.pk}])
        with pytest.raises(InvalidData):
            asend(queue.name, {"a": float("inf")})
        with pytest.raises(InvalidOption):
            acancel()
        with pytest.raises(JobNotFound):
            aget_job(uuid4())
        assert Job.objects.count() == 1


def test_what_is_sent_is_taken_back_with_the_callers_transaction(queue):  # R191 R199
    with rolled_back():
        asend(queue.name)
        asend_many(queue.name, [{}, {}])

    assert not Job.objects.exists()


def test_an_async_caller_may_await_one_after_another(queue):  # R188 R291
    async def view() -> str:
        job = await services.asend(queue.name, {"n": 1})
        assert job is not None
        await services.acancel(job.pk)
        return (await services.aget_job(job.pk)).state

    assert async_to_sync(view)() == "cancelled"
