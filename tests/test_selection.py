"""A selection of jobs as a value: JSON in and out, and the jobs that it means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, OperationBatch
from django_jobqueue.selection import Range, Selection
from django_jobqueue.states import JobState
from tests.factories import JobFactory

NOON = datetime(2001, 5, 4, 12, tzinfo=UTC)
EVERY_FIELD: dict[str, Any] = {
    "ids": (uuid7(), uuid7()),
    "queue": "orders",
    "states": (JobState.EXPIRED, JobState.FAILED),
    "key": "",
    "key_prefix": "customer",
    "tags": ("red", "blue"),
    "handler": "ship",
    "worker": "web-1",
    "fingerprint": "abc",
    "source_queue": "orders",
    "search": "0198",
    "operation": uuid7(),
    "blocks_key": True,
    "created_at": Range(NOON, NOON + timedelta(microseconds=1)),
    "started_at": Range(NOON),
    "finalized_at": Range(None, NOON),
    "attempt": Range(1, 3),
    "duration": Range(0.5),
    "after_seq": 0,
    "until_seq": 2**63 - 1,
    "snapshot": "1:2:",
}


def test_these_tests_know_every_field():
    assert set(EVERY_FIELD) == set(Selection.__dataclass_fields__)


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_each_field_comes_back_from_json(name):
    selection = Selection(**{name: EVERY_FIELD[name]})

    document = json.loads(json.dumps(selection.to_json()))

    assert list(document) == [name]
    assert Selection.from_json(document) == selection
    assert getattr(selection, name) == EVERY_FIELD[name]


def test_all_filters_together_come_back_from_json():
    selection = Selection(**{name: value for name, value in EVERY_FIELD.items() if name != "ids"})

    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection


def test_no_fields_are_an_empty_document():
    assert Selection().to_json() == {}
    assert Selection.from_json({}) == Selection()


def test_ids_and_states_are_kept_once():
    id = uuid7()

    assert Selection(ids=[id, str(id)]).ids == (id,)  # type: ignore[arg-type]
    assert Selection(states=["failed", "expired", "failed"]).states == (  # type: ignore[arg-type]
        JobState.EXPIRED,
        JobState.FAILED,
    )


@pytest.mark.parametrize(
    ("document", "option"),
    (
        ({"query": "state=failed"}, "selection"),
        ({"model": "job"}, "selection"),
        ({7: "x"}, "selection"),
        ([], "selection"),
        ("queue", "selection"),
        (None, "selection"),
        ({"ids": "0198"}, "ids"),
        ({"ids": [7]}, "ids"),
        ({"ids": ["1 OR 1=1"]}, "ids"),
        ({"ids": [], "queue": "orders"}, "ids"),
        ({"queue": 7}, "queue"),
        ({"queue": "nul \0"}, "queue"),
        ({"key": ["a"]}, "key"),
        ({"handler": "x" * 10_001}, "handler"),
        ({"worker": "lone \ud800"}, "worker"),
        ({"states": "failed"}, "states"),
        ({"states": ["sleeping"]}, "state"),
        ({"states": [None]}, "state"),
        ({"tags": "red"}, "tags"),
        ({"tags": [""]}, "tags[0]"),
        ({"blocks_key": "yes"}, "blocks_key"),
        ({"created_at": "2026-05-04"}, "created_at"),
        ({"created_at": {"from": "noon"}}, "created_at"),
        ({"created_at": {"from": "2026-05-04T12:00:00"}}, "created_at"),  # without a time zone
        ({"created_at": {"from": 5}}, "created_at"),
        ({"created_at": {"since": "2026-05-04T12:00:00Z"}}, "created_at"),
        ({"attempt": {"from": -1}}, "attempt"),
        ({"attempt": {"to": float("nan")}}, "attempt"),
        ({"duration": {"to": True}}, "duration"),
        ({"duration": 5}, "duration"),
        ({"until_seq": "5"}, "until_seq"),
        ({"after_seq": -1}, "after_seq"),
        ({"until_seq": 2**63}, "until_seq"),
        ({"snapshot": 5}, "snapshot"),
    ),
    ids=ascii,
)
def test_bad_input_is_refused_and_named(document, option):
    with pytest.raises(InvalidOption) as caught:
        Selection.from_json(document)

    assert caught.value.option == option


def test_an_unknown_field_is_told_with_the_closest_match():
    with pytest.raises(InvalidOption, match="unknown field 'state'") as caught:
        Selection.from_json({"state": ["failed"]})

    assert caught.value.hint == "Did you mean 'states'?"


def test_a_selection_cannot_be_changed():
    with pytest.raises(AttributeError):
        Selection().queue = "orders"  # type: ignore[misc]


# ----------------------------------------------------------------------------------------------- the jobs that it means


@pytest.mark.django_db
def test_each_field_finds_its_jobs_and_no_others(queue, fifo_queue):
    now = timezone.now()
    ran = {"assigned_at": now - timedelta(seconds=60), "started_at": now - timedelta(seconds=60), "finalized_at": now}
    wanted = JobFactory(
        queue=fifo_queue, name="ship", singleton_key="customer-7", tags=["red", "blue"], assignee="web-1", attempt=3,
        state=JobState.FAILED, fingerprint="abc", attempt_finished_at=now, created_at=now - timedelta(days=3),
        source_queue="shop", **ran,
    )  # fmt: skip
    JobFactory(queue=queue, name="mail", singleton_key="c", tags=["red"], created_at=now - timedelta(days=9))
    early, late = now - timedelta(days=4), now - timedelta(days=2)
    fields: dict[str, Any] = {
        "ids": [wanted.pk],
        "queue": fifo_queue.name,
        "states": ["failed", "expired"],
        "key": "customer-7",
        "key_prefix": "customer",
        "tags": ["blue", "red"],
        "handler": "ship",
        "worker": "web-1",
        "fingerprint": "abc",
        "source_queue": "shop",
        "search": str(wanted.pk),
        "blocks_key": True,
        "created_at": Range(early, late),
        "started_at": Range(early, now),
        "finalized_at": Range(late),
        "attempt": Range(3, 3),
        "duration": Range(59, 61),
        "until_seq": wanted.seq,
        "operation": OperationBatch.objects.create(
            operation_id=uuid7(),
            first_id=wanted.pk,
            last_id=wanted.pk,
            ids=[wanted.pk],
            first_seq=wanted.seq,
            last_seq=wanted.seq,
        ).operation_id,
    }

    assert set(fields) == set(EVERY_FIELD) - {"after_seq", "snapshot"}
    for name, value in fields.items():
        assert list(Job.objects.selected(Selection(**{name: value}))) == [wanted], name
    assert list(Job.objects.selected(Selection(after_seq=wanted.seq)).values_list("name", flat=True)) == ["mail"]
    together = {name: value for name, value in fields.items() if name != "ids"}
    assert list(Job.objects.selected(Selection(**together))) == [wanted]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "field",
    (
        {"created_at": Range(None, NOON)},
        {"attempt": Range(4)},
        {"duration": Range(3_600)},
        {"key": ""},
        {"tags": ["green"]},
        {"states": []},
        {"ids": []},
        {"search": "ustomer"},
        {"until_seq": 0},
    ),
    ids=str,
)
def test_a_field_that_matches_no_job_finds_none(queue, field):
    JobFactory(queue=queue, singleton_key="customer", state=JobState.FAILED, attempt=3)

    assert not Job.objects.selected(Selection(**field)).exists()


@pytest.mark.django_db
def test_an_empty_selection_means_all_jobs(queue):
    jobs = {JobFactory(queue=queue) for _ in range(2)}

    assert set(Job.objects.selected(Selection())) == jobs
