"""The first page: what needs attention, figures, charts, and what a refresh costs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.charts import PERIODS, Chart, Series, charts, count_text, nice, steps_of
from django_jobqueue.models import Maintenance, QueueMinute, Worker
from django_jobqueue.services.inspect.backlog import pulse
from django_jobqueue.states import JobState
from tests.admin.pages import read
from tests.factories import JobFactory, QueueFactory
from tests.past import ago

pytestmark = pytest.mark.django_db

OVERVIEW = "/admin/jobqueue/"


@pytest.fixture(autouse=True)
def nothing_cached():
    cache.clear()


def minute(queue, minutes_ago, **counts):
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    return QueueMinute.objects.create(queue=queue, minute=at, **counts)


def test_when_all_is_well_it_says_so(boss, queue):
    Worker.objects.create(name="web")
    services.send(queue.name)

    page = read(boss.get(OVERVIEW)).text

    assert "Throughput and latency" in page
    assert "Jobs per minute" in page


def test_what_needs_attention_comes_first(boss, queue, fifo_queue):
    JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED, error="ShopError: broken")
    Worker.objects.create(name="gone", heartbeat_at=ago(hours=1))
    services.update_queue(queue.name, warning_queue_size=5)
    minute(queue, 1, waiting=7)
    minute(fifo_queue, 2, failed=9, completed=1)
    late = services.create_schedule("late", queue.name, "@daily")
    type(late).objects.update(next_at=ago(hours=2))

    page = read(boss.get(OVERVIEW)).text

    for text in (
        "ada",
        "ShopError: broken",
        "gone",
        "Many jobs wait in work",
        "7 jobs wait",
        "Most jobs of orders fail",
        "late",
    ):
        assert text in page
    assert page.index("Needs attention") < page.index("Throughput and latency")


def test_dead_letters_wait_for_an_operator_and_not_for_a_worker(boss, queue):
    letters = QueueFactory(name="letters")
    services.update_queue(queue.name, dead_letter=letters.name)
    JobFactory(queue=letters, created_at=ago(hours=2), start_after=ago(hours=2))

    page = read(boss.get(OVERVIEW)).text

    assert "1 dead letter in 'letters', the oldest 2 h old" in page
    assert "No worker takes jobs of" not in page


def test_a_chart_ends_where_counting_has_come_to(queue):
    counted = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=2)
    Maintenance.objects.update_or_create(pk=Maintenance.ONLY, defaults={"counted_until": counted})

    assert steps_of(PERIODS["1h"], [queue.name], using="default")[-1].at == counted - timedelta(minutes=1)


def test_every_figure_links_to_the_list_it_counts(boss, queue):
    page = boss.get(OVERVIEW).content.decode()

    for state in ("waiting", "running", "completed", "dead"):
        assert f"/admin/jobqueue/job/?state={state}" in page


@pytest.mark.parametrize("period", (*PERIODS, "nonsense"))
def test_every_period_has_charts_with_tables(boss, queue, period):
    minute(queue, 3, sent=60, completed=50, failed=2, waiting=4, waited=[0, 5, 5], ran=[10])

    response = boss.get(f"{OVERVIEW}?period={period}")

    page = response.content.decode()
    assert page.count('<svg class="jq-chart"') == 4
    assert page.count("as a table") == 4
    assert "style=" not in page


def test_charts_of_one_queue(boss, queue, fifo_queue):
    minute(queue, 3, completed=50)
    minute(fifo_queue, 3, completed=7)

    one = steps_of(PERIODS["1h"], [fifo_queue.name], using="default")
    both = steps_of(PERIODS["1h"], [queue.name, fifo_queue.name], using="default")

    assert (sum(step.completed for step in one), sum(step.completed for step in both)) == (7, 57)
    assert boss.get(f"{OVERVIEW}?queue={fifo_queue.name}").status_code == 200


def test_steps_sum_minutes_and_know_percentiles(queue):
    for number in range(1, 31):  # not the current minute: it is not drawn if a step begins with it
        minute(queue, number, sent=2, completed=1, waiting=number, waited=[0, 0, 4])

    now = timezone.now()

    found = steps_of(PERIODS["24h"], [queue.name], using="default", now=now)

    assert sum(step.sent for step in found) == 60
    assert len(found) == 72 + (now.minute % 20 > 0)
    drawn = charts(found, PERIODS["24h"])
    waited = drawn[2].series[0].values
    assert [value for value in waited if value is not None]
    assert max(value or 0 for value in waited) < 0.005


def test_an_axis_ends_at_a_round_number():
    assert [nice(value) for value in (0, 0.03, 1, 7, 11, 95, 100, 101, 2_300)] == [
        1.0, 0.04, 1, 10, 20, 100, 100, 200, 2_500,
    ]  # fmt: skip
    assert [count_text(value) for value in (0, 7, 950, 1_500, 2_000_000)] == ["0", "7", "950", "1.5k", "2M"]


def test_a_gap_in_what_is_known_is_a_gap_in_the_line():
    times = [timezone.now()] * 4
    chart = Chart("x", [Series("a", "sent", [1.0, None, 2.0, 2.0])], times, PERIODS["1h"], count_text)

    path = chart._path(chart.series[0].values)

    assert path.count("M") == 2
    assert [values for _, values in chart.table] == [["1"], ["–"], ["2"], ["2"]]  # noqa: RUF001


def test_the_pulse_changes_with_what_an_operator_should_see(queue, fifo_queue):
    def beat():
        return pulse(using="default")[0]

    marks = [beat()]
    JobFactory(queue=queue)  # nothing new to see
    JobFactory(queue=queue, state=JobState.ACTIVE)
    assert beat() == marks[0]
    JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)
    marks.append(beat())
    services.pause(queue.name)
    marks.append(beat())
    Worker.objects.create(name="web")
    marks.append(beat())

    assert len(set(marks)) == 4
    assert pulse(using="default")[1] == 1


def test_the_pulse_changes_when_a_worker_has_been_silent_for_as_long_as_settings_say(settings):
    settings.JOBQUEUE = {"WORKER_LOST_SECONDS": 50.0}
    Worker.objects.create(name="web", heartbeat_at=ago(seconds=40))
    alive = pulse(using="default")
    settings.JOBQUEUE = {"WORKER_LOST_SECONDS": 20.0}

    assert pulse(using="default") != alive


def test_a_refresh_asks_the_queue_once(boss, queue, django_assert_num_queries):
    boss.get("/admin/jobqueue/queue/pulse/")

    with django_assert_num_queries(5) as asked:  # session, user, settings on, one query, settings off
        answer = boss.get("/admin/jobqueue/queue/pulse/")

    assert set(answer.json()) == {"pulse", "running"}
    assert len([query for query in asked.captured_queries if "jobqueue_job" in query["sql"]]) == 1


def test_who_may_not_see_jobs_sees_no_figures(login, queue):
    client = login("view_queue")

    assert "Throughput and latency" not in client.get(OVERVIEW).content.decode()
    assert client.get("/admin/jobqueue/queue/pulse/").status_code == 403
    assert client.get("/admin/jobqueue/queue/overview/").status_code == 403


def test_a_schedule_whose_handler_is_not_imported_yet_is_no_alarm(boss, queue, handlers_not_imported):
    services.create_schedule("nightly", queue.name, "@daily", handler=handlers_not_imported)
    services.create_schedule("typo", queue.name, "@daily", handler="late.reprot")

    shown = read(boss.get("/admin/jobqueue/")).text

    assert "nightly" not in shown
    assert "There is no handler named 'late.reprot'. Did you mean 'late.report'?" in shown


def test_handlers_that_cannot_be_imported_are_no_alarm_of_a_schedule(boss, queue, handlers_not_imported, settings):
    settings.JOBQUEUE = {"HANDLER_MODULES": ["broken"]}
    services.create_schedule("nightly", queue.name, "@daily", handler=handlers_not_imported)

    assert "nightly" not in read(boss.get("/admin/jobqueue/")).text
