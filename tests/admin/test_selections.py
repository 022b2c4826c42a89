"""The URL of a list, its selection and the jobs that the list shows agree."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.admin.filters import GROUPS, LOOK_UPS, TEXT
from django_jobqueue.admin.selections import from_query, to_query
from django_jobqueue.models import Job, Operation, OperationBatch
from django_jobqueue.selection import Range, Selection
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, choose, confirm, read
from tests.factories import JobFactory, QueueFactory
from tests.past import reread

pytestmark = pytest.mark.django_db

OPERATION = "01980000-0000-7000-8000-000000000000"
BLOCKED_LOOK_UPS = ("queue", "fingerprint")
MOMENT = (timezone.now() - timedelta(days=1)).replace(microsecond=0)
TIMES = [f"{name}__range__{end}" for name in ("created_at", "started_at", "finalized_at") for end in ("gte", "lte")]
ADDRESSES: dict[str, dict[str, Any]] = {
    **{f"state={name}": {"state": name} for name in (*GROUPS, *JobState.values)},
    **{f"{name} {'from' if name.endswith('gte') else 'to'}": {name: MOMENT.isoformat()} for name in TIMES},
    "queue": {"queue": "orders"},
    "handler": {"handler": "ship"},
    "key": {"key": "customer-7"},
    "tag": {"tag": "red"},
    "tags": {"tag": "red,blue"},
    "worker": {"worker": "web-1"},
    "fingerprint": {"fingerprint": "abc"},
    "source queue": {"source_queue": "shop"},
    "attempt from": {"attempt__range__gte": "2.0"},
    "attempt to": {"attempt__range__lte": "1.0"},
    "duration from": {"duration__range__gte": "30.5"},
    "duration to": {"duration__range__lte": "30.5"},
    "operation": {"operation": OPERATION},
    "search": {"q": "customer"},
    "several": {"q": "c", "state": "dead", "queue": "orders", "handler": "ship", "attempt__range__gte": "1.0"},
    "none": {},
}


@pytest.fixture
def jobs(queue, fifo_queue):
    """Jobs of which each filter matches some, but not all."""
    now, old = timezone.now(), timezone.now() - timedelta(days=3)
    ended = {"assigned_at": now - timedelta(seconds=60), "finalized_at": now, "attempt_finished_at": now}
    made = [JobFactory(queue=queue, state=state, created_at=now) for state in JobState]
    made += [
        JobFactory(queue=queue, name="mail", singleton_key="c", tags=["red"], created_at=old, started_at=old),
        JobFactory(
            queue=fifo_queue, name="ship", singleton_key="customer-7", tags=["red", "blue"], assignee="web-1",
            state=JobState.FAILED, fingerprint="abc", attempt=3, created_at=old, started_at=now,
            source_queue="shop", **ended,
        ),
        JobFactory(queue=queue, state=JobState.COMPLETED, assigned_at=old, started_at=old, finalized_at=old),
    ]  # fmt: skip
    changed = sorted(job.pk for job in made[:2])
    OperationBatch.objects.create(operation_id=OPERATION, first_id=changed[0], last_id=changed[1], ids=changed,
                                  first_seq=made[0].seq, last_seq=made[1].seq)  # fmt: skip
    return made


def jobs_of(**given: str) -> Selection:
    return from_query(QueryDict(urlencode(given)), LOOK_UPS, search="search")


def listed(client, url, given):
    response = client.get(url, given)
    assert response.status_code == 200
    return {job.pk for job in response.context["cl"].result_list}


def test_every_filter_of_the_list_is_tried():
    assert {name for given in ADDRESSES.values() for name in given} == LOOK_UPS - {TEXT} | {"q"}


@pytest.mark.parametrize("name", ADDRESSES)
def test_the_list_shows_the_jobs_of_its_selection(boss, jobs, name):
    given = ADDRESSES[name]
    selection = jobs_of(**given)

    shown = listed(boss, JOBS, given)

    assert shown == set(Job.objects.selected(selection).values_list("pk", flat=True))
    assert shown == {job.pk for job in jobs} if name == "none" else 0 < len(shown) < len(jobs)


@pytest.mark.parametrize("name", ADDRESSES)
def test_an_operation_over_all_of_the_list_is_recorded_with_its_selection(boss, jobs, name):
    asked = choose(boss, "cancel_jobs", jobs[0], across=1, url=f"{JOBS}?{urlencode(ADDRESSES[name])}")
    confirm(boss, asked)

    document = Operation.objects.get().selection
    bounds = {"after_seq": document["after_seq"], "until_seq": document["until_seq"]}
    assert document == {**jobs_of(**ADDRESSES[name]).to_json(), **bounds}


@pytest.mark.parametrize("name", ADDRESSES)
def test_the_address_of_a_selection_means_the_selection(name):
    selection = jobs_of(**ADDRESSES[name])

    query = to_query(selection)

    assert query is not None
    assert from_query(QueryDict(query), LOOK_UPS, search="search") == selection
    assert dict(QueryDict(query).items()) == ADDRESSES[name]


def test_a_time_without_a_zone_is_one_of_the_current_zone():
    with timezone.override("Asia/Kolkata"):
        selection = jobs_of(created_at__range__gte="2026-05-04T12:00")

    assert selection.to_json() == {"created_at": {"from": "2026-05-04T12:00:00+05:30"}}


@pytest.mark.parametrize(
    "given",
    (
        {"state": "nonsense"},
        {"attempt__range__gte": "many"},
        {"attempt__range__gte": "1", "attempt__range__lte": "-1"},
        {"created_at__range__lte": "yesterday"},
        {"key": "\0"},
        {"q": " "},
        {"tag": " , "},
        {"queue": ""},
        {"older": "5"},
        {"data__password__startswith": "a"},
    ),
    ids=str,
)
def test_what_cannot_be_read_does_not_filter(given):
    assert jobs_of(**given) == Selection()


@pytest.mark.parametrize(
    "given", ({"key": "x" * 10_001}, {"tag": "x" * 1_000}, {"created_at__range__gte": "0001-01-01T00:00"}), ids=ascii
)
def test_an_address_that_no_selection_can_have_is_refused(boss, jobs, given):
    response = boss.get(JOBS, given)

    assert (response.status_code, response.url) == (302, f"{JOBS}?e=1")


@pytest.mark.parametrize(
    "selection",
    (
        Selection(ids=()),
        Selection(states=(JobState.FAILED, JobState.COMPLETED)),
        Selection(tags=("a,b",)),
        Selection(key=""),
    ),
    ids=str,
)
def test_a_selection_that_no_address_can_say_has_none(selection):
    assert to_query(selection) is None


@pytest.mark.parametrize(
    ("given", "finds"),
    (({}, 3), ({"queue": "orders"}, 2), ({"fingerprint": "abc"}, 1), ({"q": "customer"}, 2), ({"q": "ustomer"}, 0)),
    ids=str,
)
def test_the_list_of_blocked_keys_shows_the_jobs_of_its_selection(boss, queue, fifo_queue, given, finds):
    other = QueueFactory(name="other", policy="key_strict_fifo")
    JobFactory(queue=queue, singleton_key="customer-1", state=JobState.FAILED, fingerprint="abc")
    JobFactory(queue=fifo_queue, singleton_key="customer-1", state=JobState.FAILED, fingerprint="abc")
    JobFactory(queue=fifo_queue, singleton_key="x", state=JobState.EXPIRED)
    JobFactory(queue=fifo_queue, singleton_key="customer-3")
    JobFactory(queue=other, singleton_key="customer-1", state=JobState.FAILED)
    selection = from_query(QueryDict(urlencode(given)), BLOCKED_LOOK_UPS, search="key_prefix", blocks_key=True)

    shown = listed(boss, BLOCKED, given)

    assert shown == set(Job.objects.selected(selection).values_list("pk", flat=True))
    assert len(shown) == finds


def test_the_page_of_an_operation_shows_filters_that_no_list_can_show(boss, queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)
    selection = Selection(states=(JobState.FAILED, JobState.COMPLETED), attempt=Range(0))
    operation = services.begin_operation("delete", selection=selection, operator="x")

    page = boss.get(f"/admin/jobqueue/operation/{operation.pk}/change/")
    boss.post(f"/admin/jobqueue/operation/{operation.pk}/advance/")

    assert "All jobs (state: completed, failed; attempt: 0.0 to …), ended until 2" in read(page).text
    assert page.context["later_url"] is None
    assert not Job.objects.filter(pk=job.pk).exists()


def test_the_page_of_an_operation_whose_selection_cannot_be_read_is_shown(boss, queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)
    operation = Operation.objects.create(verb="retry", state="running", selection={"query": "x"}, cursor={"place": 0})

    assert boss.get(f"/admin/jobqueue/operation/{operation.pk}/change/").status_code == 200
    assert reread(job).state == "failed"
