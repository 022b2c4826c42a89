"""At most one job per queue, key and window of time."""

from __future__ import annotations

import pytest
from django.db import connection

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .lives import sent

ENDLESS = 86_400 * 365 * 50  # a window that does not end while a test runs


def test_a_second_send_in_the_window_is_refused(queue):  # R078 B39
    sent(queue, throttle_seconds=ENDLESS)

    assert services.send(queue.name, throttle_seconds=ENDLESS) is None
    assert Job.objects.count() == 1


def test_the_window_stays_taken_when_its_job_has_ended(queue):  # B39
    job = sent(queue, throttle_seconds=ENDLESS)
    services.fetch(queue.name)
    services.complete(job.pk)

    assert services.send(queue.name, throttle_seconds=ENDLESS) is None


def test_every_key_and_queue_has_a_window_of_its_own(queue, fifo_queue):  # B39
    sent(queue, throttle_seconds=ENDLESS)

    assert services.send(queue.name, throttle_seconds=ENDLESS, singleton_key="a") is not None
    assert services.send(queue.name, throttle_seconds=ENDLESS, singleton_key="a") is None
    assert services.send(fifo_queue.name, throttle_seconds=ENDLESS, singleton_key="a") is not None
    assert services.send(fifo_queue.name, throttle_seconds=ENDLESS, singleton_key="a") is None


def test_the_next_window_takes_a_job_again(queue):  # B39
    job = sent(queue, throttle_seconds=ENDLESS)
    slot = Job.objects.values_list("throttle_slot", flat=True).get(pk=job.pk)
    assert slot is not None
    seconds, number = slot.split(":")
    Job.objects.filter(pk=job.pk).update(throttle_slot=f"{seconds}:{int(number) - 1}")

    assert services.send(queue.name, throttle_seconds=ENDLESS) is not None


def test_a_window_begins_at_a_multiple_of_its_length(queue):  # B39
    sent(queue, throttle_seconds=60)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT split_part(throttle_slot, ':', 1)::int,"
            " split_part(throttle_slot, ':', 2)::bigint = floor(extract(epoch FROM created_at) / 60) FROM jobqueue_job"
        )
        assert cursor.fetchone() == (60, True)


def test_sends_without_a_throttle_are_not_counted(queue):  # B39
    sent(queue, throttle_seconds=ENDLESS)

    assert services.send(queue.name) is not None
    assert services.send(queue.name) is not None


def test_the_job_in_the_way_can_be_asked_for(queue):  # B32 B39
    job = sent(queue, throttle_seconds=ENDLESS)

    assert services.send(queue.name, throttle_seconds=ENDLESS, on_duplicate="return") == job


def test_a_batch_keeps_to_the_window_too(queue):  # B39
    item: services.Item = {"throttle_seconds": ENDLESS}

    stored = services.send_many(queue.name, [item, item, {}], on_duplicate="ignore")

    assert [id is not None for id in stored] == [True, False, True]
    assert services.send(queue.name, throttle_seconds=ENDLESS) is None


@pytest.mark.parametrize("seconds", (0, -1, 1.5, True, "60"))
def test_a_window_is_a_whole_number_of_seconds(queue, seconds):  # B39
    with pytest.raises(InvalidOption, match="throttle_seconds"):
        services.send(queue.name, throttle_seconds=seconds)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_racing_sends_one_gets_the_window(queue, race):  # B39
    answers = race(6, lambda: services.send(queue.name, throttle_seconds=ENDLESS))

    assert sum(answer is not None for answer in answers) == 1
    assert Job.objects.filter(state=JobState.CREATED).count() == 1
