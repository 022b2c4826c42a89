"""Signals: after the commit, once, and a receiver that breaks breaks nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal

from django_jobqueue import services, signals
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState

from .factories import JobFactory
from .past import ago, rewrite
from .services.lives import claimed, rolled_back, sent

pytestmark = pytest.mark.django_db(transaction=True)

Heard = list[dict[str, Any]]


@pytest.fixture
def hears() -> Iterator[Callable[[Signal], Heard]]:
    """``hears(signal)``: the list of what it says from now on."""
    connected: list[tuple[Signal, Any]] = []

    def hear(signal: Signal) -> Heard:
        heard: Heard = []

        def receiver(sender: Any, signal: Signal, **said: Any) -> None:
            heard.append({"sender": sender, **said})

        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))
        return heard

    yield hear
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def broken() -> Iterator[Callable[[Signal], None]]:
    """``broken(signal)``: connect a receiver that always raises."""
    connected: list[tuple[Signal, Any]] = []

    def connect(signal: Signal) -> None:
        def receiver(**said: Any) -> None:
            raise RuntimeError("this receiver is broken")

        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


# --------------------------------------------------------------------------------------------------- job_sent


def test_a_send_is_announced(queue, hears):
    heard = hears(signals.job_sent)

    job = sent(queue)

    assert heard == [{"sender": Job, "ids": [job.pk], "queue": queue.name, "using": "default"}]


def test_a_send_is_announced_after_the_commit(queue, hears):
    heard = hears(signals.job_sent)

    with transaction.atomic():
        job = sent(queue)
        assert heard == []

    assert [said["ids"] for said in heard] == [[job.pk]]


def test_a_send_that_is_rolled_back_is_not_announced(queue, hears):  # F28
    heard = hears(signals.job_sent)

    with rolled_back():
        sent(queue)
        services.send_many(queue.name, [{}, {}])

    assert heard == []


def test_of_a_savepoint_that_is_rolled_back_nothing_is_announced(queue, hears):
    heard = hears(signals.job_sent)

    with transaction.atomic():
        first = sent(queue)
        with rolled_back():
            sent(queue)
        last = sent(queue)

    assert [said["ids"] for said in heard] == [[first.pk], [last.pk]]


def test_many_sends_are_announced_together(queue, hears):
    heard = hears(signals.job_sent)

    ids = services.send_many(queue.name, [{"data": n} for n in range(3)])

    assert heard == [{"sender": Job, "ids": ids, "queue": queue.name, "using": "default"}]


@pytest.mark.parametrize("on_duplicate", ("return", "ignore"))
def test_of_many_sends_only_what_was_stored_is_announced(queue, hears, on_duplicate):
    known, fresh = uuid7(), uuid7()
    sent(queue, id=known)
    heard = hears(signals.job_sent)

    services.send_many(queue.name, [{"id": known}, {"id": fresh}], on_duplicate=on_duplicate)

    assert [said["ids"] for said in heard] == [[fresh]]


def test_a_send_that_is_refused_is_not_announced(short_queue, hears):
    sent(short_queue)
    heard = hears(signals.job_sent)

    assert services.send(short_queue.name) is None
    assert services.send_many(short_queue.name, [{}], on_duplicate="ignore") == [None]
    assert services.send_many(short_queue.name, []) == []

    assert heard == []


def test_a_receiver_that_raises_is_logged_and_breaks_nothing(queue, hears, broken, caplog):
    broken(signals.job_sent)
    heard = hears(signals.job_sent)

    with caplog.at_level(logging.ERROR):
        job = sent(queue)

    assert Job.objects.filter(pk=job.pk).exists()
    assert len(heard) == 1
    assert "this receiver is broken" in caplog.text


def test_without_a_listener_a_send_arranges_nothing(queue, settings):
    settings.JOBQUEUE = {"NOTIFY": False}

    with transaction.atomic():
        sent(queue)
        services.send_many(queue.name, [{}])
        assert connection.run_on_commit == []


# ---------------------------------------------------------------------------------- key_blocked and key_released


def fails(queue: Queue, key: str = "a") -> Job:
    job = claimed(queue, singleton_key=key)
    services.fail(job, "boom", for_good=True)
    return job


def test_a_job_that_fails_for_good_blocks_its_key(fifo_queue, hears):  # R023
    heard = hears(signals.key_blocked)

    job = fails(fifo_queue)

    assert heard == [{"sender": Job, "queue": fifo_queue.name, "key": "a", "id": job.pk}]


def test_a_failure_with_retries_left_blocks_no_key(fifo_queue, hears):
    heard = hears(signals.key_blocked)

    services.fail(claimed(fifo_queue, singleton_key="a"), "boom")

    assert heard == []


def test_a_failure_that_is_rolled_back_blocks_no_key(fifo_queue, hears):
    heard = hears(signals.key_blocked)
    job = claimed(fifo_queue, singleton_key="a")

    with rolled_back():
        services.fail(job, "boom", for_good=True)

    assert heard == []


def test_other_policies_have_no_keys_to_block(queue, hears):
    heard = hears(signals.key_blocked)

    fails(queue)

    assert heard == []


def test_a_queue_that_skips_what_is_exhausted_blocks_no_key(fifo_queue, hears):  # B23
    services.update_queue(fifo_queue.name, on_exhausted="skip")
    heard = hears(signals.key_blocked)

    fails(fifo_queue)

    assert heard == []


def test_a_job_that_expires_for_good_blocks_its_key(fifo_queue, hears):  # B10
    heard = hears(signals.key_blocked)
    job = claimed(fifo_queue, singleton_key="a", retry_limit=0)
    rewrite(job, expire_at=ago(hours=1))

    services.expire()

    assert [said["id"] for said in heard] == [job.pk]


def test_a_crash_loop_blocks_its_key(fifo_queue, hears):  # G8
    heard = hears(signals.key_blocked)
    worker = uuid7()
    sent(fifo_queue, singleton_key="a", retry_limit=None)
    for _ in range(3):
        (job,) = services.fetch(fifo_queue.name, worker="w", incarnation=worker)
        services.recover_lost([worker], how="died")

    assert (services.get_job(job.pk).reason, [said["id"] for said in heard]) == ("crash_loop", [job.pk])


def test_a_batch_that_fails_blocks_each_of_its_keys(fifo_queue, hears):
    heard = hears(signals.key_blocked)
    for key in "ab":
        sent(fifo_queue, singleton_key=key, retry_limit=0)

    services.finish_many(failed=[(job, "boom") for job in services.fetch(fifo_queue.name, 2)])

    assert sorted(said["key"] for said in heard) == ["a", "b"]


RELEASES: dict[str, Callable[[Job], object]] = {
    "retry": services.retry,
    "skip": lambda job: services.skip(job, reason="bad data"),
    "delete": lambda job: services.delete([job.pk]),
    "purge": lambda job: services.purge(job.queue_id),
    "purge of one state": lambda job: services.purge(job.queue_id, "failed"),
}


@pytest.mark.parametrize("verb", RELEASES)
def test_an_operator_releases_a_blocked_key(fifo_queue, hears, verb):  # R024
    job = fails(fifo_queue)
    heard = hears(signals.key_released)

    RELEASES[verb](job)

    assert heard == [{"sender": Job, "queue": fifo_queue.name, "key": "a"}]


@pytest.mark.parametrize("verb", RELEASES)
def test_a_release_that_is_rolled_back_is_not_announced(fifo_queue, hears, verb):
    job = fails(fifo_queue)
    heard = hears(signals.key_released)

    with transaction.atomic():
        with rolled_back():
            RELEASES[verb](job)
        sent(fifo_queue, singleton_key="b")

    assert heard == []


def test_a_key_that_was_not_blocked_is_not_released(fifo_queue, hears):
    heard = hears(signals.key_released)
    waiting = sent(fifo_queue, singleton_key="a")
    services.fail(claimed(fifo_queue, singleton_key="b"), "boom")
    retrying = Job.objects.get(singleton_key="b")
    done = claimed(fifo_queue, singleton_key="c")
    services.complete(done)

    services.cancel([waiting.pk, retrying.pk])
    services.delete([waiting.pk, retrying.pk, done.pk])
    services.purge(fifo_queue.name)

    assert heard == []


def test_a_job_of_another_policy_that_is_retried_releases_nothing(queue, hears):
    heard = hears(signals.key_released)

    services.retry(fails(queue))

    assert heard == []


def test_receivers_of_keys_that_raise_break_nothing(fifo_queue, broken, caplog):
    broken(signals.key_blocked)
    broken(signals.key_released)

    job = fails(fifo_queue)
    services.skip(job, reason="bad data")

    assert services.get_job(job.pk).state == JobState.STOPPED
    assert [record.name for record in caplog.records if record.levelname == "ERROR"] == ["django.dispatch"] * 2


# ------------------------------------------------------------------------------------------------ queue_backlog


def test_a_receiver_that_raises_does_not_hide_other_backlogs(queue, fifo_queue, hears, broken):  # R097
    broken(signals.queue_backlog)
    heard = hears(signals.queue_backlog)
    for one in (queue, fifo_queue):
        services.update_queue(one.name, warning_queue_size=1)
        JobFactory(queue=one, singleton_key="a")
        JobFactory(queue=one, singleton_key="b")

    services.warn_backlogs()

    assert sorted((said["queue"].name, said["waiting"]) for said in heard) == [(fifo_queue.name, 2), (queue.name, 2)]
