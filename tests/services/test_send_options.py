"""What can be said of a job when it is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.models import Job
from django_jobqueue.states import Hold, JobState
from tests.past import reread

from .lives import sent


def test_a_sent_job_tells_its_id_queue_state_and_start(queue):  # R345 R373
    job = sent(queue, {"n": 1})

    now = reread(job)
    assert isinstance(job.pk, UUID)
    assert (job.queue_id, job.state, job.data) == (queue.name, JobState.CREATED, {"n": 1})
    assert (now.queue_id, now.state, now.data) == (queue.name, JobState.CREATED, {"n": 1})
    assert job.start_after == now.start_after == now.created_at


@pytest.mark.parametrize("delay", (60, 60.0, timedelta(minutes=1)))
def test_a_delay_is_counted_from_the_database_s_clock(queue, delay):  # R322 R340
    job = sent(queue, delay=delay)
    (many,) = services.send_many(queue.name, [{"delay": delay}])

    for now in (reread(job), services.get_job(str(many))):
        assert abs((now.start_after - now.created_at).total_seconds() - 60) < 1
        assert now.hold == Hold.UNTIL
        assert now.first_start_after == now.start_after


def test_a_start_can_be_an_instant(queue):  # R341
    when = datetime(2999, 1, 1, 12, 30, tzinfo=UTC)

    job = sent(queue, start_after=when)

    assert (reread(job).start_after, reread(job).hold, job.start_after) == (when, Hold.UNTIL, when)


@pytest.mark.parametrize(
    "wrong",
    (
        {"delay": -1},
        {"delay": "60"},
        {"delay": True},
        {"delay": float("nan")},
        {"start_after": "2999-01-01"},
        {"start_after": datetime(2999, 1, 1)},  # noqa: DTZ001
        {"delay": 1, "start_after": timezone.now()},
        {"priority": 2**31},
        {"priority": "1"},
        {"priority": 1.5},
        {"retry_limit": -1},
        {"retry_limits": 1},
        {"policy": "short"},
        {"singleton_key": 7},
        {"singleton_key": "a" * 256},
    ),
)
def test_an_option_that_makes_no_sense_is_refused_by_name(queue, wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        services.send(queue.name, **wrong)
    with pytest.raises(InvalidOption, match=r"items\[1\]"):
        services.send_many(queue.name, [{}, wrong])
    assert not Job.objects.exists()


def test_a_singleton_key_prevents_a_duplicate(queue):  # R321 R342 R346
    first = sent(queue, singleton_key="a")

    assert services.send(queue.name, {"other": True}, singleton_key="a") is None
    assert list(Job.objects.all()) == [first]


def test_a_priority_is_stored(queue):  # R343
    assert reread(sent(queue, priority=-7)).priority == -7


def test_retry_options_of_the_job_go_before_the_queue_s(queue):  # R344
    job = sent(queue, retry_limit=9, retry_delay=8, retry_backoff=True)

    now = reread(job)
    assert (now.retry_limit, now.retry_delay, now.retry_backoff) == (9, 8, True)


def test_sending_to_a_queue_that_does_not_exist_is_refused(db):
    with pytest.raises(QueueNotFound):
        services.send("nothing")
    with pytest.raises(QueueNotFound):
        services.send_many("nothing", [{}])
    assert not Job.objects.exists()


def test_many_jobs_are_sent_with_their_own_options(queue):  # R325 R347
    ids = services.send_many(
        queue.name,
        [{"data": {"n": 1}, "priority": 1, "retry_limit": 9}, {"data": {"n": 2}, "delay": 60, "tags": ["x"]}, {}],
    )

    found = [services.get_job(str(id)) for id in ids]
    assert [job.data for job in found] == [{"n": 1}, {"n": 2}, None]
    assert [job.retry_limit for job in found] == [9, 2, 2]
    assert [job.hold for job in found] == [None, Hold.UNTIL, None]
    assert [job.tags for job in found] == [[], ["x"], []]
    assert found[0].seq < found[1].seq < found[2].seq
    assert all(job.position == job.seq for job in found)


def test_many_jobs_are_inserted_efficiently(queue, django_assert_max_num_queries):  # R325 R347
    items: list[services.Item] = [{"data": {"n": number}} for number in range(5_000)]

    with django_assert_max_num_queries(5):
        services.send_many(queue.name, items)

    assert Job.objects.count() == 5_000
    assert list(Job.objects.order_by("seq").values_list("data__n", flat=True)) == list(range(5_000))
