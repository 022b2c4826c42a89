from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, NotOrdered
from django_jobqueue.models import Job
from django_jobqueue.testing import JobQueueKit

from .shop.jobs import remind, ship


@pytest.fixture(autouse=True)
def queues(request: pytest.FixtureRequest) -> None:
    """A project would declare them in its settings."""
    request.getfixturevalue("db")
    services.create_queue("shop-mails")
    services.create_fifo_queue("shop-orders")


def test_the_fixture_needs_no_marker(jobqueue):
    sent = remind.send(user_id=7)

    jobqueue.assert_sent(remind, data={"user_id": 7})
    assert len(jobqueue.drain()) == 1
    assert jobqueue.wait_for(sent).output == {"wrote": "Hello, 7"}


@pytest.mark.jobqueue("immediate")
def test_immediate(jobqueue):
    remind.send(user_id=7)

    assert Job.objects.get().state == "completed"


@pytest.mark.jobqueue(mode="immediate")
def test_many_at_once_run_at_once(jobqueue):
    services.send_many("shop-mails", [remind.using().item(user_id=n) for n in range(3)])

    assert not Job.objects.exclude(state="completed").exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.jobqueue("real")
def test_real(jobqueue):
    jobs = [ship.send(order_id=1, step=str(n)) for n in range(3)]

    for job in jobs:
        jobqueue.wait_for(job)
    jobqueue.assert_fifo("shop-orders")


@pytest.mark.django_db(transaction=True)
def test_race(jobqueue):
    remind.send(user_id=7)

    assert sorted(map(len, jobqueue.race(2, lambda: services.fetch("shop-mails")))) == [0, 1]


def test_what_makes_no_sense_is_refused(jobqueue):
    with pytest.raises(InvalidOption, match="mode: expected 'manual'"):
        JobQueueKit("eager")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="no such column"):
        jobqueue.assert_sent("shop-mails", user_id=7)
    with pytest.raises(InvalidOption, match="@job"):
        jobqueue.assert_sent(len)
    with pytest.raises(NotOrdered):
        jobqueue.assert_fifo("shop-mails")


def test_a_job_that_never_ends_is_noticed(jobqueue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.testing.kit.MOST_ATTEMPTS", 5)
    remind.using(retry_limit=None).send(user_id=-1)

    with pytest.raises(AssertionError, match="5 attempts were run, and jobs are left"):
        jobqueue.drain()


def test_a_job_without_a_handler_fails_as_in_a_worker(jobqueue):
    sent = services.send("shop-mails", name="shop.jobs.remnd")
    assert sent is not None

    jobqueue.drain()

    assert Job.objects.get(pk=sent.pk).reason == "no_handler"
