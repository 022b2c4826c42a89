"""Many jobs at once: all or none, in their order."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import InternalError, connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.exceptions import DuplicateJob, InvalidData, InvalidOption, KeyRequired
from django_jobqueue.models import Job

from .lives import read_only, refused, rolled_back, sent


def test_no_items_are_no_jobs(queue):  # R195
    assert services.send_many(queue.name, []) == []
    assert services.send_many(queue.name, iter(())) == []
    assert not Job.objects.exists()


def test_ids_come_back_in_the_order_of_the_items(queue):  # R196
    given = [uuid4() for _ in range(5)]
    items: list[services.Item] = [{"id": given[0]}, {}, {"id": str(given[2])}, {}, {"id": given[4]}]

    ids = services.send_many(queue.name, items)

    assert (ids[0], ids[2], ids[4]) == (given[0], given[2], given[4])
    assert list(Job.objects.order_by("seq").values_list("pk", flat=True)) == ids
    assert [job.pk for job in services.fetch(queue.name, 5)] == ids


def test_all_jobs_wait_with_all_their_fields(queue):  # R197
    items: list[services.Item] = [
        {"data": {"n": n}, "name": f"h{n}", "tags": [f"t{n}"], "priority": n, "group_key": "g"} for n in range(3)
    ]

    services.send_many(queue.name, items)

    stored = Job.objects.order_by("seq")
    assert {job.state for job in stored} == {"created"}
    assert [(job.data, job.name, job.tags, job.priority) for job in stored] == [
        ({"n": n}, f"h{n}", [f"t{n}"], n) for n in range(3)
    ]
    assert {(job.retry_limit, job.expire_in_seconds, job.group_key) for job in stored} == {(2, 900, "g")}


def test_a_job_sent_among_many_equals_one_sent_alone(queue):  # R197
    options: Any = {
        "name": "n",
        "tags": ["t"],
        "priority": 3,
        "retry_limit": None,
        "heartbeat_seconds": 20,
        "delay": 3600,
    }
    sent(queue, {"a": 1}, **options)
    items: Any = [{"data": {"a": 1}, **options}]
    services.send_many(queue.name, items)

    own = {"id", "seq", "position", "created_at", "start_after", "first_start_after", "sent_xid"}
    columns = [field.attname for field in Job._meta.concrete_fields if field.attname not in own]
    one, other = Job.objects.order_by("seq")

    assert {name: getattr(one, name) for name in columns} == {name: getattr(other, name) for name in columns}
    assert (one.hold, other.hold) == ("until", "until")


def test_items_may_come_from_a_generator(queue):
    ids = services.send_many(queue.name, ({"data": n} for n in range(3)))

    assert [services.get_job(id).data for id in ids if id] == [0, 1, 2]


def test_ids_that_repeat_in_the_batch_or_exist_refuse_all_of_it(queue, fifo_queue):  # R199 R200 R203 B15 B30
    known, elsewhere, twice = sent(queue), sent(fifo_queue, singleton_key="k"), uuid4()

    with refused(DuplicateJob) as caught:
        services.send_many(queue.name, [{"id": id} for id in (twice, known.pk, uuid4(), twice, elsewhere.pk)])

    assert all(str(id) in str(caught.value) for id in (twice, known.pk, elsewhere.pk))


def test_one_bad_item_refuses_all_and_every_bad_one_is_named(queue):  # R199 R201 R203 B15
    items: list[Any] = [{}, {"data": {"a": [float("nan")]}}, {}, {"priority": "high"}, {"retry_limt": 1}, None]

    with refused(InvalidData) as caught:
        services.send_many(queue.name, items)

    text = str(caught.value)
    assert all(
        part in text for part in ("items[1]: data.a[0]", "items[3]: priority", "items[4]: retry_limt", "items[5]")
    )
    assert "items[0]" not in text
    assert "items[2]" not in text


@pytest.mark.parametrize("on_duplicate", (None, "ignore"))
def test_items_that_could_be_refused_keep_their_order(queue, on_duplicate):  # B6 R196
    services.send_many(queue.name, [{"singleton_key": key} for key in "cab"], on_duplicate=on_duplicate)

    assert [job.singleton_key for job in services.fetch(queue.name, 3)] == ["c", "a", "b"]


def test_of_items_that_want_the_same_slot_the_first_gets_it(queue):  # B32
    late, early = UUID(int=2), UUID(int=1)

    sent_ids = services.send_many(
        queue.name, [{"id": late, "singleton_key": "a"}, {"id": early, "singleton_key": "a"}], on_duplicate="ignore"
    )

    assert sent_ids == [late, None]


def test_items_without_a_key_refuse_all_of_an_ordered_batch(fifo_queue):  # R201 B15
    with refused(KeyRequired) as caught:
        services.send_many(fifo_queue.name, [{"singleton_key": "a"}, {}, {"singleton_key": ""}])

    assert caught.value.places == [1, 2]


def test_a_job_must_be_present(queue):  # R185 R201 R315
    with refused(InvalidOption) as caught:
        services.send_many(queue.name, [None])  # type: ignore[list-item]

    assert "items[0]" in str(caught.value)


def test_a_batch_is_part_of_the_callers_transaction(queue):  # R199
    with rolled_back():
        services.send_many(queue.name, [{}, {}])

    assert not Job.objects.exists()


@pytest.mark.parametrize("policy", ("queue", "fifo_queue", "exclusive_queue"))
def test_a_storage_error_reaches_the_caller(policy, request):  # R203 R314
    queue = request.getfixturevalue(policy)

    with pytest.raises(InternalError, match="read-only"), read_only():
        services.send_many(queue.name, [{"singleton_key": "a"}, {"singleton_key": "b"}])

    assert not Job.objects.exists()


@pytest.mark.parametrize("item", ({}, {"delay": 60}, {"tags": ["t"]}))
def test_many_jobs_take_no_more_statements_than_few(queue, item):  # R202
    def statements(n: int) -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            services.send_many(queue.name, [item] * n)
        return len(captured)

    few = statements(2)

    assert statements(400) == few <= 3


def test_later_jobs_of_a_key_wait_for_the_first_of_their_batch(fifo_queue):  # B6
    ids = services.send_many(fifo_queue.name, [{"singleton_key": key} for key in "aabab"])

    assert [job.pk for job in services.fetch(fifo_queue.name, 10)] == [ids[0], ids[2]]


@pytest.mark.django_db(transaction=True)
def test_batches_sent_at_once_are_all_stored(queue, race):  # R133 R194
    ids = race(6, lambda: services.send_many(queue.name, [{"data": n} for n in range(50)]))

    assert Job.objects.count() == 300 == len({id for some in ids for id in some})
