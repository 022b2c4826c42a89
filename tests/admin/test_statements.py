"""Each page runs at most 20 statements, those of the session and the user included, and its pulse one of its own."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from tests.admin.pages import BLOCKED, JOBS, job_url
from tests.admin.test_plans import filled  # noqa: F401  # a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("untouched_table")]

MOST = 20
OF_THE_USER = 2  # the session and the user
PAGES = (
    JOBS,
    f"{JOBS}?o=1",
    f"{JOBS}?older=15000",
    f"{JOBS}?newer=15000",
    f"{JOBS}?state=dead",
    f"{JOBS}?state=completed",
    f"{JOBS}?state=dead&queue=ordered",
    f"{JOBS}?handler=missing",
    f"{JOBS}?handler=missing&state=completed",
    f"{JOBS}?tag=blue",
    f"{JOBS}?q=k12",
    f"{JOBS}?attempt__range__gte=3",
    f"{JOBS}?text=broken",
    f"{JOBS}?text=missing",
    BLOCKED,
    f"{BLOCKED}?o=-4&p=3",
    f"{BLOCKED}?q=k1",
    f"{BLOCKED}?by=error",
    "/admin/jobqueue/failuregroup/",
    "/admin/jobqueue/queue/",
    "/admin/jobqueue/queue/ordered/change/",
    "/admin/jobqueue/schedule/",
)


def test_each_page_runs_few_statements(boss, filled, django_assert_max_num_queries):  # noqa: F811
    jobs = [Job.objects.filter(queue="ordered", state=state).order_by("seq").last() for state in ("failed", "created")]

    for address in (*PAGES, *map(job_url, jobs)):
        with django_assert_max_num_queries(MOST, info=address):
            assert boss.get(address).status_code == 200


def test_the_pulse_of_a_job_is_one_statement(boss, queue, django_assert_num_queries):
    job = services.send(queue.name)
    address = job_url(job).replace("change/", "pulse/")

    with django_assert_num_queries(OF_THE_USER + 1):
        answer = boss.get(address)

    assert answer.json()["mark"] == "created-0--False"


def test_a_list_of_schedules_reads_their_queues_by_one_statement(boss, queue, django_assert_max_num_queries):
    for number in range(30):
        services.create_schedule(f"schedule-{number}", queue.name, "@hourly")

    with django_assert_max_num_queries(8):
        boss.get("/admin/jobqueue/schedule/")
