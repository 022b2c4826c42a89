"""What happens to a send whose id or whose policy's slot is taken."""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob
from django_jobqueue.models import Job
from django_jobqueue.states import OCCUPIED, JobState

from .lives import job_in, refused, sent, snapshot

sending: Any = sys.modules["django_jobqueue.services.send"]  # its name in the package is that of the verb
WINDOW = 10**8  # seconds: no test runs across its end


def test_a_taken_slot_is_none_and_the_transaction_goes_on(queue):  # B32 I10
    with transaction.atomic():
        sent(queue, singleton_key="k")
        assert services.send(queue.name, singleton_key="k") is None
        assert services.send(queue.name, singleton_key="other") is not None

    assert Job.objects.count() == 2


@pytest.mark.parametrize("state", list(JobState))
def test_a_key_of_a_standard_queue_is_taken_while_its_job_is_unfinished(queue, state):  # B32
    job_in(state, queue, singleton_key="k")

    assert (services.send(queue.name, singleton_key="k") is None) == (state in OCCUPIED)


def test_return_gives_the_job_with_the_same_id(queue):  # B32
    job = sent(queue, {"first": True})

    found = services.send(queue.name, {"second": True}, id=job.pk, on_duplicate="return")

    assert found == job
    assert found is not None
    assert found.data == {"first": True}


def test_return_finds_the_same_id_in_another_queue(queue, fifo_queue):  # B30 B32
    job = sent(queue)

    assert services.send(fifo_queue.name, id=job.pk, singleton_key="k", on_duplicate="return") == job
    assert Job.objects.count() == 1


def test_return_gives_the_job_that_holds_the_key(queue):  # B32
    sent(queue)
    sent(queue, singleton_key="other")
    holder = sent(queue, singleton_key="k")

    assert services.send(queue.name, singleton_key="k", on_duplicate="return") == holder


def test_return_sends_the_job_if_the_other_one_ends_meanwhile(queue, monkeypatch):  # B32
    holder = sent(queue, singleton_key="k")
    look = sending.in_the_way

    def ends_first(*args: Any) -> Any:
        if Job.objects.count() == 1:
            services.cancel([holder.pk])
        return look(*args)

    monkeypatch.setattr(sending, "in_the_way", ends_first)

    job = services.send(queue.name, singleton_key="k", on_duplicate="return")

    assert job.state == "created"
    assert job.pk != holder.pk


def test_return_gives_up_on_a_job_that_it_never_sees(queue, monkeypatch):  # B32
    sent(queue, singleton_key="k")
    monkeypatch.setattr(sending, "in_the_way", lambda *_: None)

    with refused(DuplicateJob) as caught:
        services.send(queue.name, singleton_key="k", on_duplicate="return")

    assert "by a job that this transaction does not see" in str(caught.value)


def test_return_gives_the_waiting_job_of_a_short_queue_and_not_the_active_one(short_queue):  # B32
    sent(short_queue)
    services.fetch(short_queue.name)
    waiting = sent(short_queue)

    assert services.send(short_queue.name, on_duplicate="return") == waiting


def test_return_gives_the_waiting_job_of_a_stately_queue_and_not_the_active_one(stately_queue):  # B32
    sent(stately_queue)
    services.fetch(stately_queue.name)
    waiting = sent(stately_queue)

    assert services.send(stately_queue.name, on_duplicate="return") == waiting


def test_ignore_gives_none_for_an_id_and_for_a_slot(queue):  # B32
    job = sent(queue, singleton_key="k")

    assert services.send(queue.name, id=job.pk, on_duplicate="ignore") is None
    assert services.send(queue.name, singleton_key="k", on_duplicate="ignore") is None
    assert Job.objects.get() == job


@pytest.mark.parametrize("on_duplicate", ("return", "ignore"))
def test_without_a_duplicate_the_new_job_is_returned(queue, on_duplicate):  # B32
    job = services.send(queue.name, id=(id := uuid4()), on_duplicate=on_duplicate)

    assert job is not None
    assert job.pk == id


# ----------------------------------------------------------------------------------------------------- throttling


def test_a_throttled_queue_takes_one_job_per_window(queue):  # B39
    assert services.send(queue.name, throttle_seconds=WINDOW) is not None
    assert services.send(queue.name, throttle_seconds=WINDOW) is None
    assert services.send(queue.name) is not None  # only throttled sends are counted


def test_a_throttled_window_is_full_also_when_its_job_has_finished(queue):  # B39
    sent(queue, throttle_seconds=WINDOW)
    services.complete(services.fetch(queue.name)[0])

    assert services.send(queue.name, throttle_seconds=WINDOW) is None


def test_throttling_counts_per_key_and_queue(queue, short_queue):  # B39
    sent(queue, singleton_key="a", throttle_seconds=WINDOW)

    assert services.send(queue.name, singleton_key="b", throttle_seconds=WINDOW) is not None
    assert services.send(short_queue.name, singleton_key="a", throttle_seconds=WINDOW) is not None


def test_the_next_window_takes_a_job_again(queue):  # B39
    job = sent(queue, throttle_seconds=WINDOW)
    Job.objects.filter(pk=job.pk).update(throttle_slot=f"{WINDOW}:1")

    assert services.send(queue.name, throttle_seconds=WINDOW) is not None


def test_return_gives_the_job_that_fills_the_window(queue):  # B32 B39
    sent(queue)
    filling = sent(queue, throttle_seconds=WINDOW)

    assert services.send(queue.name, throttle_seconds=WINDOW, on_duplicate="return") == filling


# ------------------------------------------------------------------------------------------------------ many jobs


def test_many_with_a_taken_slot_raises_and_names_every_item(queue):  # B15 B32 R199
    sent(queue, singleton_key="a")
    sent(queue, singleton_key="b")
    items: list[services.Item] = [{"singleton_key": "a"}, {"singleton_key": "free"}, {"singleton_key": "b"}]

    with refused(DuplicateJob) as caught:
        services.send_many(queue.name, items)

    assert [item.split(":")[0] for item in caught.value.items] == ["items[0]", "items[2]"]


def test_many_with_a_repeated_key_raises(queue):  # B15 B32
    with refused(DuplicateJob) as caught:
        services.send_many(queue.name, [{"singleton_key": "a"}, {"singleton_key": "a"}])

    assert "items[1]" in str(caught.value)


def test_many_with_ignore_stores_the_others(queue):  # B32 R196
    sent(queue, singleton_key="a")
    id = uuid4()

    found = services.send_many(queue.name, [{"id": id}, {"singleton_key": "a"}], on_duplicate="ignore")

    assert found == [id, None]


def test_many_with_return_gives_the_ids_in_the_way(queue):  # B32 R196
    holder, known, id = sent(queue, singleton_key="a"), sent(queue), uuid4()

    found = services.send_many(
        queue.name, [{"singleton_key": "a"}, {"id": id}, {"id": known.pk}], on_duplicate="return"
    )

    assert found == [holder.pk, id, known.pk]
    assert Job.objects.count() == 3


@pytest.mark.parametrize(("on_duplicate", "place"), (("ignore", False), ("return", True)))
def test_many_meets_an_id_of_another_queue(queue, fifo_queue, on_duplicate, place):  # B30 B32
    job = sent(queue)
    before = snapshot()

    found = services.send_many(fifo_queue.name, [{"id": job.pk, "singleton_key": "k"}], on_duplicate=on_duplicate)

    assert found == [job.pk if place else None]
    assert snapshot() == before


@pytest.mark.parametrize(("on_duplicate", "place"), (("ignore", False), ("return", True)))
def test_many_meets_an_id_twice_in_one_batch(queue, on_duplicate, place):  # B32 R200
    id = uuid4()

    found = services.send_many(queue.name, [{"id": id, "data": 1}, {"id": id, "data": 2}], on_duplicate=on_duplicate)

    assert found == [id, id if place else None]
    assert Job.objects.get().data == 1


def test_many_within_a_throttled_window_raises(queue):  # B32 B39
    with refused(DuplicateJob):
        services.send_many(queue.name, [{"throttle_seconds": WINDOW}, {"throttle_seconds": WINDOW}])


def test_a_dropped_first_job_of_a_key_does_not_strand_the_next(fifo_queue):  # B32 R001
    taken = sent(fifo_queue, singleton_key="other")
    items: list[services.Item] = [{"id": taken.pk, "singleton_key": "k"}, {"singleton_key": "k"}]

    found = services.send_many(fifo_queue.name, items, on_duplicate="ignore")

    assert found[0] is None
    assert {job.pk for job in services.fetch(fifo_queue.name, 10)} == {taken.pk, found[1]}
