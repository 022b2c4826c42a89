"""Workers, failures and health."""

from __future__ import annotations

import pytest
from django.utils import timezone

from django_jobqueue.models import Job, Worker
from django_jobqueue.states import JobState
from tests.admin.pages import confirm, read
from tests.factories import JobFactory
from tests.past import ago, reread

pytestmark = pytest.mark.django_db

WORKERS, FAILURES, HEALTH = (f"/admin/jobqueue/{name}/" for name in ("worker", "failuregroup", "maintenance"))


def worker(name="web-1", **columns):
    return Worker.objects.create(**{"name": name, "version": "0.1.0", "capacity": 8, **columns})


def test_no_worker(boss):
    assert "Start one" in read(boss.get(WORKERS)).text


def test_each_worker_is_listed_with_its_state_and_jobs(boss, queue):
    alive = worker(queues=["work"], stats={"done": 12, "failed": 3, "memory_mb": 61.5})
    worker("web-2", heartbeat_at=ago(hours=1))
    worker("web-3", stopping_at=timezone.now())
    worker("web-4", stopped_at=timezone.now(), exit_text="exit code 0")
    worker("old", stopped_at=ago(days=2))
    job = JobFactory(queue=queue, state=JobState.ACTIVE, assignee="web-1", incarnation=alive.pk)

    page = read(boss.get(WORKERS)).text

    for text in ("alive", "silent", "stopping", "stopped", "exit code 0", f"#{job.seq}", "62 MB", "12", "0.1.0"):
        assert text in page
    assert "old" not in page


def test_a_worker_is_asked_to_stop(boss):
    asked, other = worker(), worker("web-2")

    page = boss.post(f"{WORKERS}stop/", {"name": "web-1", "reason": "a leak"}, follow=True)

    asked.refresh_from_db()
    other.refresh_from_db()
    assert asked.stopping_at is not None
    assert other.stopping_at is None
    assert "Asked web-1 to stop" in read(page).text


@pytest.mark.parametrize("name", ("", "gone", "\0"))
def test_stopping_an_unknown_worker_shows_a_message(boss, name):
    assert (
        "no longer exists" in read(boss.post(f"{WORKERS}stop/", {"name": name, "reason": "a leak"}, follow=True)).text
    )


@pytest.mark.parametrize("page", ("worker", "queue", "schedule", "operation", "blockedkey", "failuregroup", "report"))
def test_the_permission_to_view_jobs_is_enough_to_see_what_belongs_to_them(login, page):
    assert login("view_job").get(f"/admin/jobqueue/{page}/").status_code == 200


def test_asking_has_its_permission(login):
    worker()

    assert login("view_worker", "view_job").post(f"{WORKERS}stop/", {"name": "web-1"}).status_code == 403
    assert Worker.objects.get().stopping_at is None
    assert (
        login("view_worker", "stop_worker", name="may")
        .post(f"{WORKERS}stop/", {"name": "web-1", "reason": "x"})
        .status_code
        == 302
    )


# ----------------------------------------------------------------------------------------------------------- failures


def fail(queue, mark, number, **columns):
    return [
        JobFactory(queue=queue, state=JobState.FAILED, fingerprint=mark, error=f"{mark}Error: x\nand more", **columns)
        for _ in range(number)
    ]


def test_nothing_failed(boss, queue):
    JobFactory(queue=queue, state=JobState.RETRY, fingerprint="a")

    assert "No job has failed for good" in read(boss.get(FAILURES)).text


def test_failures_are_grouped_by_place(boss, queue, fifo_queue):
    fail(queue, "a", 3)
    fail(queue, "b", 1)
    JobFactory(queue=queue, state=JobState.COMPLETED, fingerprint="a")  # succeeded after a retry

    lines = boss.get(FAILURES).context["lines"]

    assert {line["group"].fingerprint: line["group"].number for line in lines} == {"a": 3, "b": 1}
    assert "aError: x" in read(boss.get(FAILURES)).text


def test_one_group_of_two_is_retried(boss, queue):
    meant, spared = fail(queue, "a", 3), fail(queue, "b", 2)
    line = next(line for line in boss.get(FAILURES).context["lines"] if line["group"].fingerprint == "a")
    given = {"action": "retry_jobs", "select_across": 1, "index": 0, "_selected_action": [str(line["job"].pk)]}
    address = f"/admin/jobqueue/job/?{line['query']}"

    asked = boss.get(boss.post(address, given).url)
    assert "All 3 jobs" in read(asked).text
    response = confirm(boss, asked)
    boss.post(response.url.replace("change/", "advance/"))

    assert {reread(job).state for job in meant} == {"retry"}
    assert {reread(job).state for job in spared} == {"failed"}


def test_many_groups_cost_the_same(boss, queue, django_assert_max_num_queries):
    for number in range(15):
        fail(queue, f"mark-{number}", 2)

    with django_assert_max_num_queries(20):
        assert len(boss.get(FAILURES).context["lines"]) == 15


# ------------------------------------------------------------------------------------------------------------- health


def test_health_shows_what_the_doctor_finds_with_its_fix(boss, fifo_queue):
    JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)

    page = read(boss.get(HEALTH)).text

    assert "What to do:" in page
    assert "blocked" in page
    assert Job.objects.count() == 1


def test_health_has_its_permission(login):
    assert login("view_job").get(HEALTH).status_code == 403
    assert login("view_maintenance", name="may").get(HEALTH).status_code == 200
