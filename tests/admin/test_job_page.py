"""The page of one job."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.json_tree import MOST_NODES, json_tree
from django_jobqueue.admin.timeline import drawn, spans_of
from django_jobqueue.admin.wording import duration
from django_jobqueue.models import Job, Operation
from django_jobqueue.services.operations import VERBS
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, act_url, confirm, edit_url, job_url, read
from tests.factories import JobFactory
from tests.past import reread

pytestmark = pytest.mark.django_db

TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 3\nShopError: the card has expired\n'


@pytest.fixture
def blocked(fifo_queue):
    """Two completed jobs, the blocking job, and two jobs behind it."""
    lane = {"queue": fifo_queue, "singleton_key": "ada", "name": "ship"}
    done = [JobFactory(**lane, state=JobState.COMPLETED) for _ in range(2)]
    failed = JobFactory(
        **lane, state=JobState.FAILED, error=TRACEBACK, data={"order": 7, "password": "hunter2"}, output=None
    )
    behind = [JobFactory(**lane, hold="lane") for _ in range(2)]
    return done, failed, behind


def test_it_says_why_and_what_became_of_it(boss, blocked):
    _, failed, _ = blocked

    page = read(boss.get(job_url(failed))).text

    assert "It blocks the key 'ada' until an operator retries or skips it." in page
    assert "ShopError: the card has expired" in page
    assert "attempt 3" in page


def test_its_neighbours_in_the_lane_are_shown(boss, blocked):
    done, failed, behind = blocked

    page = read(boss.get(job_url(failed))).text

    for job in (*done, *behind):
        assert f"#{job.seq}" in page
    assert f"#{failed.seq} (this)" in page


def test_the_blocker_is_a_neighbour_however_far(boss, fifo_queue, monkeypatch):
    monkeypatch.setattr("django_jobqueue.services.inspect.lanes.LOOKED_AROUND", 1)
    failed = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED)
    for number in range(5):
        JobFactory(queue=fifo_queue, singleton_key=f"other-{number}")
    waiting = JobFactory(queue=fifo_queue, singleton_key="a", hold="lane")

    assert f"#{failed.seq}" in read(boss.get(job_url(waiting))).text
    assert f"#{waiting.seq}" in read(boss.get(job_url(failed))).text


def test_sensitive_values_are_hidden(boss, blocked):
    page = boss.get(job_url(blocked[1])).content.decode()

    assert "hunter2" not in page
    assert "********" in page
    assert "hunter2" not in boss.get(edit_url(blocked[1])).content.decode()


@pytest.mark.parametrize("state", JobState)
def test_a_job_in_every_state_has_a_page(boss, queue, state):
    job = JobFactory(queue=queue, state=state, data=[1, {"a": None}])

    page = boss.get(job_url(job))

    assert page.status_code == 200
    offered = {verb for verb in VERBS if act_url(job, verb) in page.content.decode()}
    assert offered == {verb for verb, what in VERBS.items() if state in what.takes} - {
        "redrive"
    }  # it is no dead letter


def test_a_job_that_is_gone_is_said(boss, blocked):  # F70
    for address in (f"{JOBS}{uuid4()}/change/", f"{JOBS}nonsense/change/", f"{JOBS}{uuid4()}/act/retry/"):
        page = boss.get(address, follow=True)
        assert page.redirect_chain[-1][0] == JOBS
        assert "it may have been deleted" in read(page).text


@pytest.mark.parametrize(("verb", "state"), (("retry", JobState.RETRY), ("skip", JobState.STOPPED)))
def test_asked_it_is_done(boss, blocked, verb, state):
    _, failed, _ = blocked

    asked = boss.get(act_url(failed, verb))
    assert reread(failed).state == "failed"
    page = boss.get(confirm(boss, asked).url)

    assert page.request["PATH_INFO"] == job_url(failed)
    assert reread(failed).state == state
    assert Operation.objects.get().reason == "because"


def test_of_two_operators_who_retry_at_once_the_second_is_told(boss, blocked):  # F70
    _, failed, _ = blocked
    asked = boss.get(act_url(failed, "retry"))
    services.retry(failed)

    page = boss.get(confirm(boss, asked).url)

    assert "Nothing was changed: it is retry." in read(page).text


def test_a_deleted_job_leads_back_to_the_list(boss, queue):
    job = JobFactory(queue=queue, state=JobState.COMPLETED)

    response = confirm(boss, boss.get(act_url(job, "delete")))

    assert response.url == JOBS
    assert not Job.objects.exists()


def test_a_secret_stays_with_its_owner_when_data_is_edited(boss, fifo_queue):  # F88
    users = [{"name": "ada", "password": "hunter2"}, {"name": "ben", "password": "hunter3"}]
    failed = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED, data={"users": users})
    form = html.unescape(boss.get(edit_url(failed)).content.decode())
    shown = json.loads(re.findall(r"<textarea[^>]*>(.*?)</textarea>", form, re.DOTALL)[0])

    moved = json.dumps({"users": [{"name": "ben", "password": shown["users"][0]["password"]}] * 2})
    refused = boss.post(edit_url(failed), {"json": moved, "reason": "ada left"})
    assert "does not stand for a hidden value" in read(refused).text
    boss.post(edit_url(failed), {"json": json.dumps({"users": shown["users"][1:]}), "reason": "ada left"})

    assert reread(failed).data == {"users": users[1:]}


def test_errors_are_shown_without_secrets(boss, fifo_queue):
    error = "OperationalError: postgres://ada:hunter2@db/shop\nand more"
    attempt = {"attempt": 1, "worker": "w", "outcome": "failed", "error": error}
    job = JobFactory(queue=fifo_queue, singleton_key="a", state=JobState.FAILED, error=error, attempts=[attempt])

    for url in (job_url(job), act_url(job, "skip"), JOBS, BLOCKED, "/admin/jobqueue/queue/overview/"):
        page = boss.get(url).content.decode()
        assert "hunter2" not in page
        assert "ada:********@db" in page or url == JOBS


def test_retry_with_other_data_is_recorded_and_keeps_what_was_hidden(boss, blocked):
    _, failed, _ = blocked
    given = {"json": json.dumps({"order": 8, "password": "********"}), "reason": "wrong order"}

    page = boss.post(edit_url(failed), given, follow=True)

    assert "Retried with the new data." in read(page).text
    assert (reread(failed).state, reread(failed).data) == ("retry", {"order": 8, "password": "hunter2"})
    operation = Operation.objects.get()
    shown = boss.get(f"/admin/jobqueue/operation/{operation.pk}/change/").content.decode()
    assert "hunter2" not in shown
    assert operation.details["data"][str(failed.pk)]["before"]["order"] == 7


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("{", "This is not valid JSON"),
        ("[" * 5000, "This is not valid JSON"),
        ('"\\ud800"', "surrogate"),
        ("NaN", "NaN"),
    ),
)
def test_data_that_is_no_json_is_refused(boss, blocked, text, said):
    _, failed, _ = blocked

    page = boss.post(edit_url(failed), {"json": text})

    assert page.status_code == 200
    assert said.lower() in read(page).text.lower()
    assert reread(failed).state == "failed"


def test_editing_what_is_not_dead_any_more_changes_nothing(boss, blocked):
    _, failed, _ = blocked
    services.retry(failed)

    page = boss.post(edit_url(failed), {"json": "{}"}, follow=True)

    assert "Nothing was changed" in read(page).text
    assert reread(failed).data == {"order": 7, "password": "hunter2"}


# ------------------------------------------------------------------------------------------------- its parts, alone


def test_a_timeline_has_a_stretch_for_each_wait_and_attempt(queue):
    sent = timezone.now() - timedelta(hours=1)

    def at(minute):
        return sent + timedelta(minutes=minute)

    tries = [
        {
            "attempt": n,
            "worker": "w",
            "started": at(5 * n).isoformat(),
            "ended": at(5 * n + 1).isoformat(),
            "outcome": "error",
        }
        for n in (1, 2)
    ]
    job = JobFactory(
        queue=queue,
        state=JobState.COMPLETED,
        created_at=sent,
        assigned_at=at(20),
        finalized_at=at(30),
        attempt=3,
        attempts=tries,
    )

    found = spans_of(job)

    assert [(stage.kind, stage.seconds / 60) for stage in found] == [
        ("waited", 5), ("failed", 1), ("waited", 4), ("failed", 1), ("waited", 9), ("completed", 10),
    ]  # fmt: skip
    picture = drawn(found)
    assert picture.count("<rect") == 6
    assert "style=" not in picture


def test_a_timeline_survives_a_strange_history(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED, attempts=[{"attempt": 1}, {"started": 5, "ended": "x"}])

    assert "<svg" in drawn(spans_of(job))


def test_json_opens_and_closes_and_ends_somewhere():
    page = json_tree({"a": [1, 2, {"b": "<script>"}], "long": "x" * 10_000, "many": list(range(5_000))})

    assert "<script>" not in page
    assert page.count("<details") == 4
    assert page.count("<li>") <= MOST_NODES + 10
    assert "more, not shown" in page
    assert "x" * 3_000 not in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    (
        (0, "0 ms"), (0.0421, "42 ms"), (1.25, "1.2 s"), (12.7, "12 s"), (80, "1 min 20 s"), (3600, "1 h"),
        (90_061, "1 d 1 h"), (-3, "0 ms"),
    ),
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(timedelta(seconds=seconds)) == text
