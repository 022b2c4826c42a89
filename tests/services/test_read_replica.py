"""A project whose router reads from a replica: verbs, pages and commands use the primary only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import Client

from django_jobqueue import handlers, job, services, testing
from django_jobqueue.models import Job, Queue, Schedule
from django_jobqueue.states import JobState
from tests.admin.pages import addresses
from tests.commands.calling import jobs as run_jobs
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


class ReadsFromReplica:
    """As in Django's documentation; only the apps of Django read from the primary, because this replica is down."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica" if model._meta.app_label == "jobqueue" else "default"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, first: Any, second: Any, **hints: Any) -> bool:
        return True


@pytest.fixture
def jobs(fifo_queue: Queue, queue: Queue) -> dict[str, Job]:
    """Made before there is a replica."""
    return {
        "blocker": JobFactory(queue=fifo_queue, singleton_key="b", state=JobState.FAILED),
        "dead": JobFactory(queue=queue, state=JobState.FAILED),
        "waiting": JobFactory(queue=queue),
    }


@pytest.fixture(autouse=True)
def replica(jobs: dict[str, Job], settings: Any) -> Iterator[None]:
    """A replica that cannot be used, so that each read that is routed to it fails."""
    connections.databases["replica"] = {**connection.settings_dict, "HOST": "127.0.0.1", "PORT": 1}
    settings.DATABASE_ROUTERS = [ReadsFromReplica()]
    yield
    connections["replica"].close()
    del connections["replica"]
    del connections.databases["replica"]


def test_reads_of_the_project_go_to_the_replica():
    with pytest.raises(AssertionError, match="'replica'"):
        Job.objects.count()


def test_verbs_use_the_primary(fifo_queue, queue, jobs):
    services.create_queue("letters")
    services.update_queue(queue.name, dead_letter="letters")
    services.create_schedule("nightly", queue.name, "@daily")
    services.run_schedule("nightly")
    services.send_due()
    services.send(fifo_queue.name, 1, singleton_key="a")
    services.send_many(fifo_queue.name, [{"data": number, "singleton_key": "a"} for number in (2, 3)])

    [first] = services.fetch(fifo_queue.name)
    services.touch(first)
    services.fail(first, "broken")
    services.fetch(queue.name)
    assert services.blocked_keys(fifo_queue.name) == ["b"]
    services.why(jobs["blocker"])
    services.skip(jobs["blocker"], reason="test")
    services.retry(jobs["dead"])
    services.cancel(jobs["waiting"])
    services.list_jobs(queue.name)
    services.stats()
    services.pause(queue.name)
    services.resume(queue.name)
    services.cleanup()
    services.expire()
    services.recover_lost()
    services.check_lanes()
    services.delete_queue("letters")


def test_commands_use_the_primary(queue):
    for arguments in (["stats"], ["list"], ["blocked"], ["workers"], ["schedules"], ["maintain", "--once"]):
        assert run_jobs(*arguments).code in (0, 1), arguments


def test_jobs_run_on_the_primary(queue, jobs):
    with handlers.registry.restored(empty=True), testing.JobQueueKit() as kit:
        job(queue=queue.name, name="there")(lambda: "done")
        sent = services.send(queue.name, name="there")
        kit.drain(queue.name)

    assert sent is not None
    assert services.get_job(sent.pk).output == "done"


def test_pages_of_the_admin_show_the_primary(fifo_queue, jobs):
    blocker = jobs["blocker"]
    services.create_schedule("nightly", fifo_queue.name, "@daily", singleton_key="a")
    operation = services.begin_operation("retry", ids=[blocker.pk], operator="boss")
    names = ("job", "blockedkey", "failuregroup", "worker", "report", "maintenance")
    ids = dict.fromkeys(names, blocker.pk) | {
        "queue": fifo_queue.name,
        "schedule": "nightly",
        "operation": operation.pk,
    }
    client = Client()
    client.force_login(User.objects.create_superuser("boss", password="x"))

    for page in ("/admin/jobqueue/", *addresses(ids)):
        assert client.get(page).status_code < 500, page
    client.post("/admin/jobqueue/schedule/nightly/switch/", {"enabled": "0", "reason": "too noisy"})
    assert not Schedule.objects.using("default").get().enabled
