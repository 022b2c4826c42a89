"""What a drain counts and says: jobs by what they wait for, and why they are left."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import job, services
from django_jobqueue.log_texts import duration
from django_jobqueue.services.inspect.backlog import waiting_for
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.progress import count_total, what_is_left
from django_jobqueue.worker.tally import Tally

from .conftest import sent

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(queue, fifo_queue) -> WorkerOptions:
    """A worker of a standard and an ordered queue, whose jobs need no name."""
    job(queue=queue.name, name="plain")(lambda: None)
    job(queue=fifo_queue.name, name="laned")(lambda: None)
    return WorkerOptions(queues=(queue.name, fifo_queue.name))


def fails(key: str, queue: str) -> None:
    (failing,) = services.fetch(queue, 1)
    assert failing.singleton_key == key
    services.fail(failing, "no", for_good=True)


def test_nothing_is_left(shop):
    assert (count_total(shop), what_is_left(shop)) == (0, "No jobs are left.")


def test_a_job_that_can_be_fetched_counts_with_those_behind_it(shop, queue, fifo_queue):
    sent(queue)
    for _ in range(3):
        sent(fifo_queue, singleton_key="a")

    assert count_total(shop) == 4
    assert what_is_left(shop) == "4 jobs are left: 4 that can be fetched now."


def test_jobs_behind_a_blocked_key_are_not_the_worker_s(shop, fifo_queue):
    for _ in range(3):
        sent(fifo_queue, singleton_key="a")
    fails("a", fifo_queue.name)

    assert (count_total(shop), what_is_left(shop)) == (0, "2 jobs are left: 2 behind a blocked key.")


def test_jobs_behind_a_running_one_can_follow_it(shop, fifo_queue):
    for _ in range(3):
        sent(fifo_queue, singleton_key="a")
    services.fetch(fifo_queue.name)

    assert count_total(shop) == 2
    assert what_is_left(shop) == "3 jobs are left: 2 behind a running job of their key, 1 running in another worker."


def test_jobs_behind_one_that_waits_for_its_next_attempt_wait_with_it(shop, fifo_queue):
    for _ in range(2):
        sent(fifo_queue, singleton_key="a", retry_limit=1, retry_delay=3600)
    (failing,) = services.fetch(fifo_queue.name)
    services.fail(failing, "no")

    assert count_total(shop) == 0
    assert what_is_left(shop).endswith(", 1 behind a job of their key that is not due.")


def test_jobs_that_are_not_due_are_left_with_the_time_of_the_first(shop, queue, settings):
    settings.TIME_ZONE = "UTC"
    first = timezone.now() + timedelta(days=2)
    sent(queue, start_after=first)
    sent(queue, start_after=first + timedelta(days=1))

    assert count_total(shop) == 0
    assert what_is_left(shop) == f"2 jobs are left: 2 not due before {first:%Y-%m-%d %H:%M}."


def test_paused_queues_other_queues_tags_and_handlers_are_told_apart(queue, fifo_queue):
    job(queue=queue.name, name="known")(lambda: None)
    options = WorkerOptions(queues=(queue.name, "paused"), tags=("gpu",))
    services.create_queue("paused")
    services.pause("paused")
    sent("paused", name="known", tags=["gpu"])
    sent(queue, name="known")
    sent(queue, name="gone", tags=["gpu"])
    sent(queue, name="known", tags=["fast", "gpu"])
    sent(fifo_queue, singleton_key="a")

    assert count_total(options) == 1
    assert what_is_left(options) == (
        "5 jobs are left: 1 that can be fetched now, 1 in paused queues, 1 without the tags of this worker, "
        "1 without a handler in this code, 1 in queues this worker does not serve."
    )


def test_a_count_reads_a_bounded_number_of_jobs_along_indexes(queue, fifo_queue):
    for number in range(20):
        sent(queue)
        sent(fifo_queue, singleton_key=str(number))

    found = waiting_for([queue.name, fifo_queue.name], most=7, using="default")

    assert {each.queue: each.number for each in found} == {queue.name: 7, fifo_queue.name: 7}


@pytest.mark.parametrize(
    ("seconds", "text"),
    ((0.00042, "0.4 ms"), (0.0999, "99.9 ms"), (0.25, "0.25 s"), (3.44, "3.4 s"), (59.99, "1 min 0 s"),
     (125, "2 min 5 s"), (12_000, "3 h 20 min")),
)  # fmt: skip
def test_a_duration_has_the_unit_that_people_would_choose(seconds, text):
    assert duration(seconds) == text


def test_a_tally_names_rare_endings_only_if_there_are_any():
    assert str(Tally(completed=1_200, failed=1, retried=2)) == "1,200 completed, 1 failed, 2 retried"
    assert str(Tally(1, 2, 3, 4, 5) + Tally(1)) == "2 completed, 3 failed, 4 retried, 2 cancelled, 5 snoozed"
