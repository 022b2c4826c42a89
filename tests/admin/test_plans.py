"""Every statement of every page uses an index, whatever the statistics say, and a page runs few statements."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.charts import PERIODS
from django_jobqueue.counting import MANY
from django_jobqueue.engine.sql.statistics import OF_QUEUE, RANGES, STEPS_OF_MINUTES, STEPS_OF_SPANS, SUMMARIZE
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD
from tests.admin.pages import BLOCKED, JOBS, OPERATIONS, act_url, job_url
from tests.test_plans import _analyze, _fill, explained

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("untouched_table")]

ROWS = 10_000
MOST_STATEMENTS = 90


@pytest.fixture(params=["true statistics", "statistics of an empty table"])
def filled(request):
    for name in ("plain", "other"):
        services.create_queue(name)
    services.create_fifo_queue("ordered")
    if request.param != "true statistics":
        _analyze()
    for queue, policy in (("plain", "standard"), ("ordered", "key_strict_fifo")):
        _fill(queue, policy, number=ROWS)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, state, finalized_at, error) "
            "SELECT gen_random_uuid(), 'ordered', 'key_strict_fifo', 'k' || i, 'failed', now(), 'broken' "
            "FROM generate_series(1, 300) i"
        )
        for (index,) in cursor.execute(RANGES).fetchall():
            cursor.execute(SUMMARIZE, [index])
    if request.param == "true statistics":
        _analyze()


LISTS = (
    JOBS,
    f"{JOBS}?older=15000",
    f"{JOBS}?newer=200",
    f"{JOBS}?state=dead",
    f"{JOBS}?state=completed",
    f"{JOBS}?state=waiting&queue=plain",
    f"{JOBS}?handler=missing",
    f"{JOBS}?key=k7",
    f"{JOBS}?queue=ordered&key=k7",
    f"{JOBS}?tag=blue",
    f"{JOBS}?worker=missing",
    f"{JOBS}?q=k12",
    f"{JOBS}?q=0190aaaa",
    f"{JOBS}?attempt__range__gte=3",
    f"{JOBS}?duration__range__gte=3",
    f"{JOBS}?finalized_at__range__lte=2020-01-01T00:00",
    BLOCKED,
    f"{BLOCKED}?q=k1",
    f"{BLOCKED}?p=3",
    OPERATIONS,
    "/admin/jobqueue/",
    "/admin/jobqueue/?period=24h",
    "/admin/jobqueue/?period=7d&queue=plain",
    "/admin/jobqueue/queue/",
    "/admin/jobqueue/queue/plain/change/",
    "/admin/jobqueue/queue/pulse/",
    "/admin/jobqueue/queue/figures/?period=30d",
    "/admin/jobqueue/schedule/",
    "/admin/jobqueue/worker/",
    "/admin/jobqueue/failuregroup/",
)


def unbounded(plans):
    """Statements that read a whole index; the count of everything stops at its limit."""
    return [sql for sql in plans.whole if f"LIMIT {MANY + 1}" not in sql]


def test_the_lists(boss, filled, django_assert_max_num_queries):  # F68
    for address in LISTS:
        with django_assert_max_num_queries(MOST_STATEMENTS), explained() as plans:
            assert boss.get(address).status_code == 200
        assert (address, plans.sequential, unbounded(plans)) == (address, [], [])


def test_the_figures_of_a_month_are_read_by_their_indexes(boss, queue, django_assert_max_num_queries):
    """The chart of an hour reads only an hour, however long minutes are kept; that of a month reads spans."""
    with connection.cursor() as cursor:
        for table, column, minutes in (("queueminute", "minute", 1), ("queuespan", "begins_at", 10)):
            cursor.execute(
                f"INSERT INTO jobqueue_{table} (queue_id, {column}, waited, ran) "
                f"SELECT %s, date_trunc('hour', now()) - m * interval '{minutes} minute', ARRAY[1], ARRAY[1] "
                f"FROM generate_series(1, {30 * 24 * 60 // minutes}) m",
                [queue.name],
            )
            cursor.execute(f"ANALYZE jobqueue_{table}")
        for statement, index, name in (
            (STEPS_OF_MINUTES, "jobqueue_queue_minute_once", "1h"),
            (STEPS_OF_SPANS.format(whose=OF_QUEUE), "jobqueue_queue_span_once", "24h"),
        ):
            period = PERIODS[name]
            given: dict[str, Any] = {"step": period.step, "since": timezone.now() - period.span, "queue": queue.name}
            cursor.execute(f"EXPLAIN {statement}", given)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert index in plan
            assert "Seq Scan on jobqueue_queuem" not in plan
    with django_assert_max_num_queries(MOST_STATEMENTS):
        assert boss.get("/admin/jobqueue/?period=30d").status_code == 200


def test_a_job_and_what_can_be_done_to_it(boss, filled, django_assert_max_num_queries):
    blocker = Job.objects.filter(state="failed").order_by("seq").last()
    waiting = Job.objects.filter(queue="ordered", state="created", hold="lane").order_by("seq").first()
    assert blocker is not None
    for job in (blocker, waiting):
        with django_assert_max_num_queries(MOST_STATEMENTS), explained() as plans:
            assert boss.get(job_url(job)).status_code == 200
            assert boss.get(act_url(job, "skip")).status_code == 200
        assert plans.sequential == []
        assert unbounded(plans) == []


def test_a_bit_of_a_large_operation(boss, filled):
    operation = services.begin_operation("retry", selection={"states": sorted(DEAD)}, operator="boss")

    with explained() as plans:
        services.advance_operation(operation, seconds=0)
        boss.post(f"{OPERATIONS}{operation.pk}/advance/")

    assert plans.sequential == []
    assert Job.objects.filter(state="retry").count() == 300


@pytest.mark.parametrize("verb", ("retry", "skip", "cancel", "delete"))
def test_what_was_shown_is_found_by_the_same_indexes(boss, filled, verb):
    """Whether a change is in a snapshot is checked only for rows that an index found."""
    ticked = [str(Job.objects.values_list("pk", flat=True)[0])]
    given = {"action": f"{verb}_jobs", "_selected_action": ticked, "index": 0, "select_across": 1}
    operation = services.begin_operation(verb, selection={}, operator="boss", reason="x")

    with explained() as plans:
        assert boss.get(boss.post(JOBS, given).url).status_code == 200
        services.advance_operation(operation, seconds=0)

    assert plans.sequential == []
    assert unbounded(plans) == []


def test_what_came_later_is_counted_by_an_index(filled):
    operation = services.begin_operation("retry", selection={"queue": "other"}, operator="boss")

    with explained() as plans:
        ended = services.advance_operation(operation, seconds=50)

    assert (ended.state, ended.details["came_later"]) == ("done", 0)
    assert plans.sequential == []
    assert unbounded(plans) == []
