"""The first page: what needs attention, figures, charts, and what a refresh costs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.charts import PERIODS, charts, spark, steps_of
from django_jobqueue.models import Job, Queue, QueueMinute, QueueSpan, Worker
from django_jobqueue.services.inspect.backlog import pulse
from django_jobqueue.states import JobState
from tests.admin.pages import job_url, read
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


def failed(queue, key, minutes_ago=33, **options):
    ended = ago(minutes=minutes_ago)
    defaults = {"error": "ShopError: broken", "fingerprint": "abc", "finalized_at": ended, "attempt_finished_at": ended}
    return JobFactory(queue=queue, singleton_key=key, state=JobState.FAILED, **{**defaults, **options})


def behind(queue, key, number):
    return [JobFactory(queue=queue, singleton_key=key, hold="lane") for _ in range(number)]


def listed(client, url):
    """The jobs or keys in a list."""
    return {row.pk for row in client.get(url).context["cl"].result_list}


def tile(response, name):
    return next(tile for tile in response.context["overview"]["tiles"] if tile.name == name)


# ----------------------------------------------------------------------------------------------------------- headline


def test_when_all_is_well_it_says_so(boss, queue):
    Worker.objects.create(name="web")
    services.send(queue.name)

    page = read(boss.get(OVERVIEW)).text

    assert "All clear: no key is blocked" in page
    assert "Jobs per minute" in page


def test_the_headline_says_what_is_blocked_and_for_how_long(boss, fifo_queue):
    other = QueueFactory(name="payments", policy="key_strict_fifo")
    for key in "abcd":
        failed(fifo_queue, key, minutes_ago=10)
        behind(fifo_queue, key, 25)
    failed(other, "e")
    behind(other, "e", 7)

    page = read(boss.get(OVERVIEW)).text

    assert "5 keys blocked in 2 queues · 107 jobs wait behind them · longest 33 min" in page
    assert "1 key blocked in payments · 7 jobs wait behind them" in read(boss.get(f"{OVERVIEW}?queue=payments")).text


def test_blocked_keys_are_grouped_by_queue_and_error(boss, fifo_queue):
    examples = [failed(fifo_queue, "a"), failed(fifo_queue, "b", fingerprint="other", error="TypeError: no")]
    failed(fifo_queue, "c", minutes_ago=5)
    behind(fifo_queue, "b", 3)

    rows = boss.get(OVERVIEW).context["overview"]["rows"]

    assert [(row.group.fingerprint, row.number, row.behind, row.error) for row in rows] == [
        ("other", "1", "3", "TypeError: no"),
        ("abc", "2", "0", "ShopError: broken"),
    ]
    assert [row.example.pk for row in rows] == [examples[1].pk, examples[0].pk]
    assert listed(boss, rows[1].url) == set(Job.objects.filter(fingerprint="abc").values_list("pk", flat=True))


@pytest.mark.parametrize("verb", ("retry", "skip"))
def test_a_row_leads_to_the_confirmation_of_exactly_its_keys(boss, fifo_queue, verb):
    first = failed(fifo_queue, "a")
    failed(fifo_queue, "c")
    failed(fifo_queue, "b", fingerprint="other")
    [row] = [row for row in boss.get(OVERVIEW).context["overview"]["rows"] if row.group.keys == 2]
    given = {"action": f"{verb}_keys", "select_across": 1, "index": 0, "_selected_action": first.pk}

    page = read(boss.post(row.url, given, follow=True)).text

    assert "All 2 jobs that match the filters" in page
    assert Job.objects.filter(state=JobState.FAILED).count() == 3


def test_the_group_of_a_single_key_without_an_error_can_be_selected_too(boss, fifo_queue):
    failed(fifo_queue, "a", error="", fingerprint="")
    several = QueueFactory(name="several", policy="key_strict_fifo")
    for key in "bc":
        failed(several, key, error="", fingerprint="")

    rows = boss.get(OVERVIEW).context["overview"]["rows"]

    assert {row.group.queue: row.is_selectable for row in rows} == {fifo_queue.name: True, "several": False}


def test_who_may_not_retry_or_skip_has_no_buttons(login, fifo_queue):
    failed(fifo_queue, "a")

    page = login("view_job", "retry_job").get(OVERVIEW).content.decode()

    assert "retry_keys" in page
    assert "skip_keys" not in page


def test_what_needs_attention_comes_before_the_figures(boss, queue, fifo_queue):
    failed(fifo_queue, "ada")
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


# -------------------------------------------------------------------------------------------------------------- tiles


def test_every_figure_opens_the_list_of_exactly_what_it_counts(boss, queue, fifo_queue):
    oldest = JobFactory(queue=queue, created_at=ago(minutes=50), start_after=ago(minutes=50))
    old, new = failed(fifo_queue, "a", minutes_ago=90), failed(fifo_queue, "b", minutes_ago=2)
    waits = [oldest, *behind(fifo_queue, "a", 2)]
    runs = JobFactory(queue=queue, state=JobState.ACTIVE)

    page = boss.get(OVERVIEW)

    assert (tile(page, "oldest").text, tile(page, "oldest").url) == ("50 min", job_url(oldest))
    assert (tile(page, "behind").text, tile(page, "behind").note) == ("2", "2 keys, since 1 h")
    assert listed(boss, tile(page, "behind").url) == {old.pk, new.pk}
    assert (tile(page, "failed").text, listed(boss, tile(page, "failed").url)) == ("1", {new.pk})
    assert (tile(page, "waiting").text, listed(boss, tile(page, "waiting").url)) == ("3", {job.pk for job in waits})
    assert (tile(page, "running").text, listed(boss, tile(page, "running").url)) == ("1", {runs.pk})


def test_completed_jobs_are_those_of_the_minutes_that_are_counted(boss, queue):
    ended = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=3)
    jobs = [
        JobFactory(queue=queue, state=JobState.COMPLETED, created_at=ended, finalized_at=at)
        for at in (ended, ended + timedelta(minutes=30), ended - timedelta(hours=2))
    ]
    minute(queue, 3, completed=1)

    completed = tile(boss.get(OVERVIEW), "completed")

    assert (completed.text, listed(boss, completed.url)) == ("1", {jobs[0].pk})


def test_figures_of_one_queue_leave_out_the_others(boss, queue, fifo_queue):
    for one in (queue, fifo_queue):
        JobFactory(queue=one, singleton_key="run", state=JobState.ACTIVE)
        JobFactory(queue=one, singleton_key="wait")
    failed(fifo_queue, "a")

    page = boss.get(f"{OVERVIEW}?queue={queue.name}")

    assert {each.name: each.text for each in page.context["overview"]["tiles"]} == {
        "oldest": "0 ms", "behind": "0", "failed": "0", "running": "1", "waiting": "1", "completed": "0",
    } | {"oldest": tile(page, "oldest").text}  # fmt: skip
    assert f"queue={queue.name}" in tile(page, "running").url
    assert boss.get(f"/admin/jobqueue/queue/pulse/?queue={queue.name}").json()["running"] == "1"


def test_dead_letters_paused_queues_and_jobs_behind_others_are_not_what_could_run_now(boss, queue, fifo_queue):
    letters, paused = QueueFactory(name="letters"), QueueFactory(name="paused", paused_at=ago(hours=1))
    services.update_queue(queue.name, dead_letter=letters.name)
    long_ago = {"created_at": ago(hours=9), "start_after": ago(hours=9)}
    for other in (letters, paused):
        JobFactory(queue=other, **long_ago)
    failed(fifo_queue, "a")
    JobFactory(queue=fifo_queue, singleton_key="a", **long_ago)  # no fetch has held it yet

    assert tile(boss.get(OVERVIEW), "oldest").text == "none"


def test_blocked_keys_of_dead_letter_queues_are_only_a_notice(boss, queue):
    letters = QueueFactory(name="letters", policy="key_strict_fifo")
    services.update_queue(queue.name, dead_letter=letters.name)
    failed(letters, "a")
    behind(letters, "a", 2)

    page = boss.get(OVERVIEW)

    assert "All clear" in page.context["overview"]["headline"]
    assert tile(page, "behind").text == "0"
    assert "1 blocked key in the dead-letter queue letters" in read(page).text


def test_dead_letters_wait_for_an_operator_and_not_for_a_worker(boss, queue):
    letters = QueueFactory(name="letters")
    services.update_queue(queue.name, dead_letter=letters.name)
    JobFactory(queue=letters, created_at=ago(hours=2), start_after=ago(hours=2))

    page = read(boss.get(OVERVIEW)).text

    assert "Dead letters wait in letters" in page
    assert "No worker takes jobs of" not in page


def test_a_queue_that_does_not_exist_is_named(boss, queue):
    page = read(boss.get(f"{OVERVIEW}?queue=nonsense"))

    assert "There is no queue named nonsense. All queues are shown." in page.text


def test_every_queue_can_be_chosen(boss, db):
    Queue.objects.bulk_create([Queue(name=f"queue-{number:03}") for number in range(300)])

    page = read(boss.get(OVERVIEW))

    options = [attributes["value"] for tag, attributes in page.tags if tag == "option"]
    assert [name for name in options if name and name.startswith("queue-")] == [
        f"queue-{number:03}" for number in range(300)
    ]


# ------------------------------------------------------------------------------------------------------------- charts


def test_a_chart_ends_where_counting_has_come_to(queue):
    counted = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=2)

    steps = steps_of(PERIODS["1h"], queue.name, counted_until=counted, using="default")

    assert steps[-1].at == counted - timedelta(minutes=1)


@pytest.mark.parametrize("period", (*PERIODS, "nonsense"))
def test_every_period_has_charts_and_a_table(boss, queue, period):
    minute(queue, 3, sent=60, completed=50, failed=2, waiting=4, waited=[0, 5, 5], ran=[10])

    page = boss.get(f"{OVERVIEW}?period={period}").content.decode()
    numbers = boss.get(f"/admin/jobqueue/queue/figures/?period={period}").content.decode()

    assert page.count("data-jq-chart=") == page.count('<svg class="jq-chart"') == 4
    assert "style=" not in page + numbers
    assert "Waiting time before the first attempt" in numbers


def test_failures_and_blocked_keys_have_axes_of_their_own(queue):
    drawn = charts(steps_of(PERIODS["1h"], None, counted_until=None, using="default"), PERIODS["1h"])

    own = {str(each.name) for chart in drawn for each in chart.series if each.has_own_axis}
    assert own == {"failed", "blocked keys"}


def test_charts_of_one_queue(boss, queue, fifo_queue):
    minute(queue, 3, completed=50)
    minute(fifo_queue, 3, completed=7)

    one = steps_of(PERIODS["1h"], fifo_queue.name, counted_until=None, using="default")
    both = steps_of(PERIODS["1h"], None, counted_until=None, using="default")

    assert (sum(step.completed for step in one), sum(step.completed for step in both)) == (7, 57)
    assert boss.get(f"{OVERVIEW}?queue={fifo_queue.name}").status_code == 200


def test_steps_sum_spans_and_know_percentiles(queue):
    begins = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    for number in range(6):
        for whose in (queue, None):
            QueueSpan.objects.create(
                queue=whose,
                begins_at=begins + number * timedelta(minutes=10),
                sent=20,
                waiting=number,
                waited=[0, 0, 4],
            )

    for name in (queue.name, None):
        steps = steps_of(PERIODS["24h"], name, counted_until=None, using="default")
        filled = [step for step in steps if step.sent]
        assert [(step.sent, step.waiting) for step in filled] == [(40, 1), (40, 3), (40, 5)]
        waited = charts(steps, PERIODS["24h"])[2].series[0].values
        assert max(value or 0 for value in waited) < 0.005


def test_a_gap_in_what_is_known_is_a_gap_in_the_line():
    picture = spark([1.0, None, 2.0, 2.0])

    assert picture.count("M") == 2


def test_a_cell_of_the_table_opens_the_jobs_of_its_step(boss, fifo_queue):
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=3)
    jobs = [failed(fifo_queue, str(number), finalized_at=at + timedelta(seconds=30 * number)) for number in range(3)]
    minute(fifo_queue, 3, failed=2)

    page = boss.get("/admin/jobqueue/queue/figures/")

    [query] = [cell.query for _, cells in page.context["rows"] for cell in cells if cell.text == "2/min"]
    assert listed(boss, f"/admin/jobqueue/job/?{query}") == {job.pk for job in jobs[:2]}


# --------------------------------------------------------------------------------------------------------- statements


@pytest.fixture
def large(db):
    """200 queues with figures, blocked keys and schedules."""
    Queue.objects.bulk_create([Queue(name=f"q{number:03}", policy="key_strict_fifo") for number in range(200)])
    now = timezone.now().replace(second=0, microsecond=0)
    QueueMinute.objects.bulk_create(
        [
            QueueMinute(queue_id=f"q{number:03}", minute=now - timedelta(minutes=age), failed=9, waiting=3)
            for number in range(200)
            for age in (1, 2)
        ]
    )
    for number in range(0, 200, 10):
        queue = Queue.objects.get(pk=f"q{number:03}")
        failed(queue, "a", fingerprint=f"f{number}")
        behind(queue, "a", 1)
        services.create_schedule(f"s{number}", f"q{number:03}", "@daily", singleton_key="a")
    Worker.objects.create(name="gone", heartbeat_at=ago(hours=1))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("path", "most"),
    (
        ("", 25),
        ("?period=30d", 25),
        ("?queue=q010", 25),
        ("queue/overview/", 25),
        ("queue/figures/", 20),
        ("maintenance/", 60),
        ("schedule/", 20),
        ("worker/", 20),
    ),
)
def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(
    boss, path, most, django_assert_max_num_queries
):
    cache.clear()

    with django_assert_max_num_queries(most) as asked:
        assert boss.get(f"{OVERVIEW}{path}").status_code == 200

    made = [query["sql"] for query in asked.captured_queries]
    assert [sql for sql in made if sql.lstrip().upper().startswith(("CREATE", "DROP", "ALTER"))] == []


@pytest.mark.django_db(transaction=True)
def test_a_pulse_is_one_statement_besides_session_and_user(boss, queue, django_assert_num_queries):
    boss.get("/admin/jobqueue/queue/pulse/")

    with django_assert_num_queries(3) as asked:
        answer = boss.get("/admin/jobqueue/queue/pulse/")

    assert set(answer.json()) == {"pulse", "running", "at"}
    assert len([query for query in asked.captured_queries if "jobqueue_job" in query["sql"]]) == 1


# ------------------------------------------------------------------------------------------------------------- pulse


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


def test_who_may_not_see_jobs_sees_no_figures(login, queue):
    client = login("view_queue")

    assert "Throughput and latency" not in client.get(OVERVIEW).content.decode()
    assert client.get("/admin/jobqueue/queue/pulse/").status_code == 403
    assert client.get("/admin/jobqueue/queue/overview/").status_code == 403
    assert client.get("/admin/jobqueue/queue/figures/").status_code == 403


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
