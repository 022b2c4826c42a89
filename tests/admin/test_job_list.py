"""The list of jobs: filters, search, ranges, older and newer jobs, and actions on selected jobs."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.jobs import JobAdmin
from django_jobqueue.engine import paging
from django_jobqueue.models import Job, Operation
from django_jobqueue.states import JobState
from tests.admin.pages import JOBS, choose, confirm, read
from tests.factories import JobFactory, QueueFactory
from tests.past import reread

pytestmark = pytest.mark.django_db


def shown(client, query=""):
    """The numbers of the jobs on a page, in their order."""
    response = client.get(f"{JOBS}?{query}")
    assert response.status_code == 200
    return [int(n) for n in re.findall(r'class="field-number"><a[^>]*>#(\d+)<', response.content.decode())]


@pytest.fixture
def jobs(queue, fifo_queue):
    now = timezone.now()
    return {
        "old": JobFactory(queue=queue, name="mail", created_at=now - timedelta(days=3), tags=["a", "b"]),
        "done": JobFactory(
            queue=queue,
            name="mail",
            state=JobState.COMPLETED,
            assignee="web-1",
            assigned_at=now - timedelta(seconds=90),
            finalized_at=now,
            tags=["a"],
        ),
        "failed": JobFactory(
            queue=fifo_queue, name="ship", singleton_key="customer-7", state=JobState.FAILED, attempt=3
        ),
        "running": JobFactory(queue=queue, name="mail", state=JobState.ACTIVE, assignee="web-2"),
    }


def minutes(moment):
    return timezone.localtime(moment).strftime("%Y-%m-%dT%H:%M:%S")


@pytest.mark.parametrize(
    ("query", "names"),
    (
        ("", ["running", "failed", "done", "old"]),
        ("state=failed", ["failed"]),
        ("state=waiting", ["old"]),
        ("state=running", ["running"]),
        ("state=dead", ["failed"]),
        ("state=finished", ["failed", "done"]),
        ("state=nonsense", ["running", "failed", "done", "old"]),
        ("queue=orders", ["failed"]),
        ("handler=mail", ["running", "done", "old"]),
        ("key=customer-7", ["failed"]),
        ("worker=web-1", ["done"]),
        ("tag=a", ["done", "old"]),
        ("tag=a,+b", ["old"]),
        ("handler=mail&state=waiting", ["old"]),
        ("attempt__range__gte=2", ["failed"]),
        ("attempt__range__lte=0", ["old"]),
        ("duration__range__gte=60", ["done"]),
        ("duration__range__gte=60&duration__range__lte=80", []),
        ("q=customer", ["failed"]),
        ("q=ustomer", []),
        ("q=%00", ["running", "failed", "done", "old"]),
        ("key=%00", ["running", "failed", "done", "old"]),
        ("attempt__range__gte=many", ["running", "failed", "done", "old"]),
    ),
)
def test_filters(boss, jobs, query, names):
    assert shown(boss, query) == [jobs[name].seq for name in names]


def test_a_range_of_time(boss, jobs):
    yesterday = minutes(timezone.now() - timedelta(days=1))

    assert shown(boss, f"created_at__range__lte={yesterday}") == [jobs["old"].seq]
    assert jobs["old"].seq not in shown(boss, f"created_at__range__gte={yesterday}")
    assert shown(boss, f"finalized_at__range__gte={yesterday}") == [jobs["failed"].seq, jobs["done"].seq]


def test_a_bad_range_is_said(boss, jobs):
    assert "Enter a number" in read(boss.get(f"{JOBS}?attempt__range__gte=many")).text


def test_a_job_is_found_by_its_id_and_by_the_beginning_of_it(boss, jobs):
    job = jobs["failed"]

    assert shown(boss, f"q={job.pk}") == [job.seq]
    assert shown(boss, f"q={job.pk.hex}") == [job.seq]
    assert shown(boss, f"q={str(job.pk)[:23]}") == [job.seq]
    assert shown(boss, f"q={str(job.pk)[:33]}") == [job.seq]


def test_filters_keep_each_other(boss, jobs):
    page = boss.get(f"{JOBS}?state=waiting&handler=mail").content.decode()

    assert '<input type="hidden" name="handler" value="mail">' in page
    assert "?handler=mail&amp;queue=orders&amp;state=waiting" in page


@pytest.mark.parametrize(
    "look_up",
    (
        "data__password__startswith=a",
        "data__contains=a",
        "queue__policy=standard",
        "error__icontains=x",
        "id__gt=1",
    ),
)
def test_only_declared_look_ups_filter(boss, jobs, look_up):  # F69
    response = boss.get(f"{JOBS}?{look_up}")

    assert response.status_code in (302, 400)
    assert "mail" not in response.content.decode()


def test_older_and_newer_go_through_all(boss, queue, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 10)
    seqs = [JobFactory(queue=queue).seq for _ in range(25)][::-1]

    first = boss.get(JOBS).context["cl"]
    second = boss.get(JOBS + first.older_link).context["cl"]
    third = boss.get(JOBS + second.older_link).context["cl"]

    pages = [[job.seq for job in cl.result_list] for cl in (first, second, third)]
    assert pages == [seqs[:10], seqs[10:20], seqs[20:]]
    assert (first.newer_link, third.older_link) == (None, None)
    back = boss.get(JOBS + third.newer_link).context["cl"]
    assert [job.seq for job in back.result_list] == pages[1]
    top = boss.get(JOBS + back.newer_link).context["cl"]
    assert [job.seq for job in top.result_list] == pages[0]


@pytest.mark.parametrize("place", ("x", "-1", "9" * 40, "%00", ""))
def test_a_place_that_is_none_is_the_beginning(boss, queue, place):
    job = JobFactory(queue=queue)

    assert shown(boss, f"older={place}") in ([job.seq], [])
    assert boss.get(f"{JOBS}?newer={place}").status_code == 200


def test_a_page_that_looked_far_enough_says_so(boss, queue, monkeypatch):
    monkeypatch.setattr(paging, "NARROW", 4)
    monkeypatch.setattr(paging, "CHEAP", 0)
    monkeypatch.setattr(paging, "MOST", 10)
    JobFactory(queue=queue, name="rare")
    for _ in range(30):
        JobFactory(queue=queue, name="often")

    page = boss.get(f"{JOBS}?handler=rare")

    assert "10 jobs were searched" in read(page).text
    cl = page.context["cl"]
    for _ in range(5):
        if cl.result_list:
            break
        cl = boss.get(JOBS + cl.older_link).context["cl"]
    assert [job.name for job in cl.result_list] == ["rare"]


def test_more_than_many_are_not_counted(boss, queue, monkeypatch):
    monkeypatch.setattr(paging, "MANY", 20)
    monkeypatch.setattr("django_jobqueue.admin.wording.MANY", 20)
    for _ in range(30):
        JobFactory(queue=queue)

    assert "20+ jobs" in read(boss.get(JOBS)).text


def test_data_is_not_read_for_a_list(boss, jobs, django_assert_max_num_queries):
    with django_assert_max_num_queries(40) as queries:
        boss.get(JOBS)

    assert not [query for query in queries.captured_queries if '"data"' in query["sql"]]


def test_the_oldest_come_first_if_the_column_is_turned(boss, queue, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 10)
    seqs = [JobFactory(queue=queue).seq for _ in range(25)]

    first = boss.get(f"{JOBS}?o=1").context["cl"]
    second = boss.get(JOBS + first.newer_link).context["cl"]
    third = boss.get(JOBS + second.newer_link).context["cl"]

    assert [[job.seq for job in cl.result_list] for cl in (first, second, third)] == [
        seqs[:10],
        seqs[10:20],
        seqs[20:],
    ]
    assert (first.older_link, third.newer_link) == (None, None)
    back = boss.get(JOBS + third.older_link).context["cl"]
    assert [job.seq for job in back.result_list] == seqs[10:20]


@pytest.mark.parametrize(
    ("query", "counts"),
    (
        ("", ["waiting (1)", "running (1)", "failed for good (1)", "finished (2)"]),
        ("state=failed", ["waiting (1)", "running (1)", "failed for good (1)", "finished (2)"]),
        ("queue=orders", ["waiting (0)", "running (0)", "failed for good (1)", "finished (1)"]),
        ("tag=a", ["waiting (1)", "running (0)", "failed for good (0)", "finished (1)"]),
        ("handler=mail&state=running", ["waiting (1)", "running (1)", "failed for good (0)", "finished (1)"]),
    ),
)
def test_states_are_counted_whatever_state_is_chosen(boss, jobs, query, counts):
    choices = boss.get(f"{JOBS}?{query}").context["cl"].state_choices

    assert [choice["display"] for choice in choices] == ["All", *counts]


def test_counts_of_states_stop_at_a_limit(boss, queue, monkeypatch):
    monkeypatch.setattr(paging, "MANY", 20)
    monkeypatch.setattr("django_jobqueue.admin.wording.MANY", 20)
    monkeypatch.setattr(paging, "COUNTED", 10)
    for state in (*[JobState.CREATED] * 30, *[JobState.COMPLETED] * 5):
        JobFactory(queue=queue, state=state)

    choices = boss.get(JOBS).context["cl"].state_choices

    assert [choice["display"] for choice in choices[1:]] == [
        "waiting (20+)",
        "running (0)",
        "failed for good (0)",
        "finished (5+)",
    ]


def test_a_text_is_found_in_errors_and_data_but_not_in_what_is_hidden(boss, login, queue):
    JobFactory(queue=queue)
    failed = JobFactory(queue=queue, state=JobState.FAILED, error="Traceback\nShopError: Card 17 expired")
    bought = JobFactory(queue=queue, data={"article": "Blue Shirt", "password": "hunter2"})

    assert shown(boss, "text=card+17") == [failed.seq]
    assert shown(boss, "text=blue+shirt") == [bought.seq]
    assert shown(boss, "text=card&state=waiting") == []
    assert shown(boss, "text=hunter") == []
    assert shown(boss, "text=50%25") == []
    only_errors = login("view_job")
    assert shown(only_errors, "text=card") == [failed.seq]
    assert shown(only_errors, "text=shirt") == []


def test_a_search_goes_on_behind_matches_that_are_hidden(boss, queue, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    wanted = JobFactory(queue=queue, data={"note": "hunter2"})
    for _ in range(8):
        JobFactory(queue=queue, data={"password": "hunter2"})

    assert shown(boss, "text=hunter2") == [wanted.seq]


def test_a_search_says_how_many_jobs_it_searched(boss, queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.services.inspect.lists.SEARCHED", 8)
    monkeypatch.setattr(paging, "CHEAP", 0)
    rare = JobFactory(queue=queue, error="rare")
    for _ in range(10):
        JobFactory(queue=queue)

    page = boss.get(f"{JOBS}?text=rare")

    assert "Searched the newest 8 jobs for “rare”" in read(page).text
    assert shown(boss, page.context["cl"].older_link[1:]) == [rare.seq]


def test_a_search_that_takes_too_long_says_so(boss, queue, monkeypatch):
    monkeypatch.setattr(paging, "CHEAP", 0)
    monkeypatch.setattr(paging, "_in_time", lambda using, read: None)
    JobFactory(queue=queue, error="rare")

    assert "took too long" in read(boss.get(f"{JOBS}?text=rare")).text


def test_the_search_box_offers_to_search_the_text(boss, jobs):
    page = boss.get(f"{JOBS}?q=expired&state=dead")

    assert page.context["cl"].text_search == "?state=dead&text=expired"


def test_all_jobs_with_a_text_cannot_be_selected(boss, jobs):
    response = choose(boss, "retry_jobs", jobs["failed"], across=1, url=f"{JOBS}?text=nothing")

    assert "Select the jobs one by one" in read(response).text
    assert not Operation.objects.exists()


def test_many_queues_are_chosen_by_a_text_that_suggests_their_names(boss, queue):
    links = boss.get(JOBS).content.decode()
    QueueFactory.create_batch(15)
    suggested = boss.get(JOBS).content.decode()

    assert (f"?queue={queue.name}" in links, "<datalist" in links) == (True, False)
    assert f'<option value="{queue.name}">' in suggested
    assert f"?queue={queue.name}" not in suggested


# ------------------------------------------------------------------------------------------------------------ actions


def test_a_preview_says_what_will_happen_and_changes_nothing(boss, jobs):
    page = read(choose(boss, "retry_jobs", jobs["failed"], jobs["done"]))

    assert "gets one more attempt" in page.text
    assert "nothing, because it is completed" in page.text
    assert reread(jobs["failed"]).state == "failed"
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("action", "job", "state"),
    (
        ("retry_jobs", "failed", "retry"),
        ("skip_jobs", "failed", "stopped"),
        ("cancel_jobs", "old", "cancelled"),
        ("cancel_jobs", "running", "cancelling"),
    ),
)
def test_confirmed_it_is_done_and_recorded(boss, jobs, action, job, state):
    response = confirm(boss, choose(boss, action, jobs[job]), reason="because")

    assert reread(jobs[job]).state == state
    (operation,) = Operation.objects.all()
    assert (operation.operator, operation.reason, operation.moved) == ("boss", "because", 1)
    assert "because" in read(boss.get(response.url)).text


def test_finished_jobs_are_deleted(boss, jobs):
    response = confirm(boss, choose(boss, "delete_jobs", jobs["done"], jobs["old"]))

    assert set(Job.objects.values_list("seq", flat=True)) == {jobs[n].seq for n in ("old", "failed", "running")}
    page = read(boss.get(response.url)).text
    assert "refused: it is created" in page
    assert "deleted" in page


@pytest.mark.parametrize(("action", "job"), (("skip_jobs", "failed"), ("cancel_jobs", "old"), ("delete_jobs", "done")))
def test_what_ends_or_deletes_jobs_needs_a_reason(boss, jobs, action, job):
    asked = choose(boss, action, jobs[job])

    page = boss.get(confirm(boss, asked, reason="  ").url)

    assert page.request["PATH_INFO"] == asked.request["PATH_INFO"]
    assert "Nothing was changed: give a reason." in read(page).text
    assert not Operation.objects.exists()
    confirm(boss, page)
    assert Operation.objects.get().moved == 1


def test_select_all_means_what_the_filters_find(boss, queue, jobs):
    others = [JobFactory(queue=queue, name="ship", state=JobState.FAILED) for _ in range(3)]
    spared = JobFactory(queue=queue, name="mail", state=JobState.FAILED)

    preview = choose(boss, "retry_jobs", others[0], across=1, url=f"{JOBS}?handler=ship&older=1")
    assert "All 4 jobs that match the filters" in read(preview).text
    response = confirm(boss, preview)
    late = JobFactory(queue=queue, name="ship", state=JobState.FAILED)
    page = boss.get(response.url).content.decode()
    assert "data-jq-running" in page
    answer = boss.post(response.url.replace("change/", "advance/"), headers={"Accept": "application/json"})

    assert answer.json() == {"state": "done", "moved": 4, "refused": 0, "percent": 100}
    assert {reread(job).state for job in (*others, jobs["failed"])} == {"retry"}
    assert {reread(job).state for job in (spared, late)} == {"failed"}


def test_without_scripts_a_button_goes_on(boss, queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)
    operation = services.begin_operation("retry", selection={}, operator="x")

    response = boss.post(f"/admin/jobqueue/operation/{operation.pk}/advance/")

    assert response.url.endswith(f"{operation.pk}/change/")
    assert reread(job).state == "retry"


def test_an_operation_is_stopped_and_resumed(boss, queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)
    operation = services.begin_operation("retry", ids=[job.pk], operator="x")
    page = f"/admin/jobqueue/operation/{operation.pk}/"

    boss.post(f"{page}stop/", {"reason": "the wrong jobs"})
    text = read(boss.get(f"{page}change/")).text
    assert "boss: the wrong jobs" in text
    assert "1 job, selected one by one" in text
    assert "not yet" in text
    boss.post(f"{page}resume/")

    operation.refresh_from_db()
    assert operation.state == "running"


def test_a_selection_that_is_none_is_refused(boss, jobs):
    given = {"action": "retry_jobs", "_selected_action": ["1 OR 1=1"], "index": 0}

    assert boss.post(JOBS, given).status_code == 400
    assert boss.post(JOBS, {**given, "_selected_action": [str(jobs["old"].pk)] * 1001}).status_code == 400
    assert not Operation.objects.exists()
