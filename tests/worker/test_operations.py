"""An operation whose page was closed is finished by the housekeeping process of a worker."""

from __future__ import annotations

import signal

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_jobqueue.models import Job, Operation
from django_jobqueue.states import JobState
from tests.admin.pages import JOBS, choose, confirm
from tests.factories import JobFactory, QueueFactory
from tests.faults.runner import Runner
from tests.past import left_alone, reread
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(tmp_path):
    """``runjobs`` in processes of its own."""
    runners: list[Runner] = []

    def start() -> Runner:
        runners.append(Runner(tmp_path, "--processes", "1", "--queue", "faults", settings={"MONITOR_SECONDS": 3_600}))
        return runners[-1]

    yield start
    for runner in runners:
        runner.kill_all(signal.SIGKILL)
        runner.process.wait(10)
        print(runner.log[-8_000:])


def test_an_operation_begun_in_the_admin_is_finished_without_a_browser(worker):
    QueueFactory(name="faults")
    queue = QueueFactory(name="work")
    jobs = [JobFactory(queue=queue, name="ship", state=JobState.FAILED) for _ in range(3)]
    other = JobFactory(queue=queue, name="mail", state=JobState.FAILED)
    client = Client()
    client.force_login(User.objects.create_superuser("boss", password="x"))
    confirm(client, choose(client, "skip_jobs", jobs[0], across=1, url=f"{JOBS}?handler=ship"))
    operation = left_alone(Operation.objects.get())  # the browser is closed before its page has advanced anything
    later = JobFactory(queue=queue, name="ship", state=JobState.FAILED)
    assert (operation.state, operation.moved) == ("running", 0)

    runner = worker()
    until(lambda: Operation.objects.filter(state="done").exists(), "a worker has finished it", seconds=60)

    operation.refresh_from_db()
    assert (operation.moved, operation.refused, operation.operator) == (3, 0, "boss")
    assert {reread(job).state for job in jobs} == {"stopped"}
    assert {reread(job).state for job in (other, later)} == {"failed"}
    assert Job.objects.count() == 5
    assert runner.process.poll() is None
