"""Ids that do not exist, or that are no ids, for every verb that takes one."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidOption, JobNotFound
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState

from . import bad_values
from .bad_input_verbs import BY_ID, Verb
from .lives import claimed, job_in, refused, refuses_all, sent, snapshot

CANCEL: dict[str, Verb] = {"cancel": services.cancel, "acancel": async_to_sync(services.acancel)}
BY_IDS = ("retry", "skip", "delete", "cancel")
BY_CLAIM: dict[str, Verb] = {
    "touch": services.touch,
    "finish_many, completed": lambda job: services.finish_many([(job, None)]),
    "finish_many, failed": lambda job: services.finish_many([], [(job, "boom")]),
}


@pytest.fixture(autouse=True)
def _a_job_in_each_state(queue: Queue) -> None:
    for state in JobState:
        job_in(state, queue)


@pytest.mark.parametrize("verb", BY_ID | CANCEL)
def test_what_is_no_id_is_refused(verb):  # R237 R248 R256 R279 R315
    refuses_all((BY_ID | CANCEL)[verb], bad_values.IDS, InvalidOption, option="id")


@pytest.mark.parametrize("verb", BY_IDS)
def test_one_that_is_no_id_among_many_refuses_all(queue, verb):  # R315
    good = job_in(JobState.FAILED, queue)

    refuses_all(lambda id: (BY_ID | CANCEL)[verb]([good.pk, id]), bad_values.IDS, InvalidOption, option="id")


@pytest.mark.parametrize("as_text", (False, True))
@pytest.mark.parametrize("verb", BY_ID)
def test_an_id_that_nobody_knows_is_told(verb, as_text):  # R246 R254 R259 R266 R267 R292 R313
    id = uuid7()

    with refused(JobNotFound) as caught:
        BY_ID[verb](str(id) if as_text else id)

    assert caught.value.job_ids == [id]
    assert str(id) in str(caught.value)


@pytest.mark.parametrize("verb", BY_ID)
def test_a_job_is_not_found_in_another_queue(queue, short_queue, verb):  # R267 R313
    job = claimed(queue)

    with refused(JobNotFound):
        BY_ID[verb](job.pk, queue=short_queue.name)
    with refused(JobNotFound):
        BY_ID[verb](job.pk, queue="nowhere")


@pytest.mark.parametrize("verb", CANCEL)
def test_cancel_lists_what_it_does_not_find(queue, short_queue, verb):  # R275
    id, job = uuid7(), sent(queue)
    before = snapshot()

    assert CANCEL[verb](id) == services.Cancellation([], [id], {})
    assert CANCEL[verb](job.pk, queue=short_queue.name) == services.Cancellation([], [job.pk], {})

    assert snapshot() == before


@pytest.mark.parametrize("verb", BY_ID)
def test_a_job_that_was_deleted_is_not_found(queue, verb):  # R313
    job = claimed(queue)
    services.purge(queue.name)

    with refused(JobNotFound):
        BY_ID[verb](job.pk)


@pytest.mark.parametrize("verb", sorted(set(BY_ID) - {"get_job", "aget_job"}))
def test_a_job_that_was_never_sent_is_not_found(queue, verb):  # R185 R313
    with refused(JobNotFound):
        BY_ID[verb](Job(queue=queue))


@pytest.mark.parametrize("verb", BY_CLAIM)
def test_a_verb_that_needs_a_claim_refuses_everything_else(verb):  # R315
    refuses_all(BY_CLAIM[verb], [*bad_values.IDS, bad_values.SOME_ID, str(bad_values.SOME_ID), []], InvalidOption)

    with refused(InvalidOption) as caught:
        BY_CLAIM[verb](bad_values.SOME_ID)
    assert "fetch" in str(caught.value)  # says where such a job comes from


def test_touching_a_job_that_was_never_sent_is_a_lost_claim(queue):
    with refused(ClaimLost):
        services.touch(Job(queue=queue))


@pytest.mark.parametrize("argument", ("completed", "failed"))
def test_a_batch_that_is_no_list_of_pairs_is_refused(argument):  # R315
    pairs = (5, "x", [5], [()], [(1, 2, 3)], {"a": 1}, object())

    refuses_all(lambda bad: services.finish_many(**{argument: bad}), pairs, InvalidOption, option=argument)


@pytest.mark.parametrize("argument", ("completed", "failed"))
def test_one_that_is_no_claim_refuses_the_whole_batch(queue, argument):  # R315
    good = claimed(queue)

    with refused(InvalidOption):
        services.finish_many(**{argument: [(good, "x"), (bad_values.SOME_ID, "x")]})  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", BY_IDS)
def test_a_queryset_of_something_else_is_refused(verb):
    with refused(InvalidOption):
        (BY_ID | CANCEL)[verb](Queue.objects.all())
