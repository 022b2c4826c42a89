"""Who did what to which jobs, why, and how far it got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, InvalidTransition, JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation
from django_jobqueue.states import JobState

from .lives import claimed, job_in, refused, sent, shown

LONG = "x" * 5_000


def recorded() -> tuple[str, str, str, int, int]:
    operation = Operation.objects.get()
    assert operation.finished_at is not None
    return operation.verb, operation.operator, operation.reason, operation.moved, operation.refused


def test_a_retry_is_recorded_with_what_it_refused(queue):
    dead, running = job_in(JobState.FAILED, queue), claimed(queue)

    services.retry([dead.pk, running.pk], operator="ann", reason="fixed the bug")

    assert recorded() == ("retry", "ann", "fixed the bug", 1, 1)
    operation = Operation.objects.get()
    assert operation.selection == {"ids": [str(dead.pk)]}
    assert operation.details == {"refused": {str(running.pk): "it is active"}}


def test_a_skip_is_recorded_with_its_reason(queue):
    services.skip(job_in(JobState.FAILED, queue).pk, reason="bad", operator="ann")

    assert recorded() == ("skip", "ann", "bad", 1, 0)


def test_a_delete_by_ids_is_recorded(queue):
    job = job_in(JobState.COMPLETED, queue)

    services.delete(job.pk, operator="ann")

    assert recorded() == ("delete", "ann", "", 1, 0)
    assert Operation.objects.get().selection == {"ids": [str(job.pk)]}


def test_a_delete_by_tags_is_recorded_with_what_it_deleted(queue):
    jobs = [job_in(JobState.COMPLETED, queue, tags=["red"]) for _ in range(2)]

    services.delete(tags=["red"], operator="ann")

    assert recorded() == ("delete", "ann", "", 2, 0)
    assert set(Operation.objects.get().selection["ids"]) == {str(job.pk) for job in jobs}


def test_a_purge_is_recorded_with_its_count(queue):
    services.send_many(queue.name, [{}] * 3)

    services.purge(queue.name, operator="ann")

    assert recorded() == ("purge", "ann", "", 3, 0)
    assert Operation.objects.get().queue == queue.name


def test_code_that_names_no_operator_is_not_recorded(queue):
    services.retry(job_in(JobState.FAILED, queue).pk)
    services.cancel(sent(queue).pk)
    services.purge(queue.name)

    assert not Operation.objects.exists()


def test_what_was_refused_as_a_whole_is_not_recorded(queue):
    job = sent(queue)

    with refused(InvalidTransition):
        services.retry(job.pk, operator="ann")
    with refused(JobNotFound):
        services.skip(uuid7(), reason="bad", operator="ann")
    with refused(InvalidTransition):
        services.delete(job.pk, operator="ann")


VERBS: dict[str, Callable[[Job, Job, Any], object]] = {
    "retry": lambda dead, waiting, operator: services.retry(dead.pk, operator=operator),
    "skip": lambda dead, waiting, operator: services.skip(dead.pk, reason="bad", operator=operator),
    "cancel": lambda dead, waiting, operator: services.cancel(waiting.pk, operator=operator),
    "delete": lambda dead, waiting, operator: services.delete(dead.pk, operator=operator),
    "purge": lambda dead, waiting, operator: services.purge(dead.queue_id, operator=operator),
}


@pytest.mark.parametrize("operator", ("nul \0", "lone \ud800", LONG, 5, b"ann"), ids=shown)
@pytest.mark.parametrize("verb", VERBS)
def test_an_operator_that_cannot_be_stored_is_refused_before_anything_moves(queue, verb, operator):
    dead, waiting = job_in(JobState.FAILED, queue), sent(queue)

    with refused(InvalidOption) as caught:
        VERBS[verb](dead, waiting, operator)

    assert caught.value.option == "operator"


@pytest.mark.parametrize("verb", VERBS)
def test_no_operator_is_the_empty_text(queue, verb):
    VERBS[verb](job_in(JobState.FAILED, queue), sent(queue), None)

    assert not Operation.objects.exclude(operator="").exists()


@pytest.mark.parametrize("reason", ("nul \0 lone \ud800", LONG * 10), ids=shown)
@pytest.mark.parametrize("verb", ("retry", "skip"))
def test_a_reason_is_cleaned_and_never_refused(queue, verb, reason):
    job = job_in(JobState.FAILED, queue)

    getattr(services, verb)(job.pk, reason=reason, operator="ann")

    stored = Operation.objects.get().reason
    assert stored.startswith(reason[:3])
    assert "\0" not in stored
    assert len(stored) <= 20_000
