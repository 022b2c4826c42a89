"""Arguments that make no sense, for every verb and each of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, KeyRequired
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Queue
from django_jobqueue.services.send_many import Source
from django_jobqueue.states import JobState

from . import bad_values
from .bad_input_verbs import BY_ID
from .lives import claimed, job_in, now, refused, refuses_all, sent

BV = bad_values
CENTURY = 101 * 366 * 86_400  # seconds, and more than anything may take

OF_A_JOB: dict[str, tuple[Any, ...]] = {
    "name": BV.TEXTS,
    "singleton_key": BV.TEXTS,
    "group_key": BV.TEXTS,
    "priority": ("high", 1.5, True, BV.NAN, 2**31, -(2**31), 10**400, b"1", [], object()),
    "delay": (*BV.SECONDS, timedelta(seconds=-1), timedelta.max, CENTURY),
    "start_after": BV.TIMES,
    "throttle_seconds": (0, *BV.COUNTS),
    "retry_limit": BV.COUNTS,
    "retry_delay": (None, 1.5, *BV.SECONDS),
    "retry_delay_max": (0, 1.5, *BV.SECONDS),
    "retry_backoff": (None, 0, 1, "yes"),
    "expire_in_seconds": (None, 0, timedelta(0), 1.5, *BV.SECONDS),
    "heartbeat_seconds": (0, 9, timedelta(seconds=8), *BV.SECONDS),
    "retention_seconds": (None, 0, *BV.SECONDS),
    "delete_after_seconds": (None, *BV.SECONDS),
    "delete_failed_after_seconds": (None, *BV.SECONDS),
}
IDS_TO_SEND = tuple(value for value in BV.IDS if value is not None)


def send_with(option: str) -> Callable[[Any], object]:
    return lambda value: services.send("work", **{option: value})


def send_many_with(option: str) -> Callable[[Any], object]:
    return lambda value: services.send_many("work", [{}, {option: value}])  # type: ignore[misc]


@pytest.mark.parametrize("option", OF_A_JOB)
def test_a_bad_option_of_a_job_is_refused(queue, option):  # R315 R201
    refuses_all(send_with(option), OF_A_JOB[option], InvalidOption, option=option)
    refuses_all(send_many_with(option), OF_A_JOB[option], InvalidOption, option="items")


def test_a_bad_id_of_a_job_is_refused(queue):  # R187 R315
    refuses_all(send_with("id"), IDS_TO_SEND, InvalidOption, option="id")
    refuses_all(send_many_with("id"), IDS_TO_SEND, InvalidOption, option="items")


def test_bad_tags_are_refused_and_the_bad_one_is_named(queue):  # R315
    refuses_all(send_with("tags"), BV.TAGS, InvalidOption)
    refuses_all(send_many_with("tags"), BV.TAGS, InvalidOption, option="items")
    with refused(InvalidOption) as caught:
        services.send("work", tags=["good", ""])
    assert caught.value.option == "tags[1]"


@pytest.mark.parametrize(
    "verb",
    (
        lambda tags: services.fetch("work", tags=tags),
        lambda tags: services.stats(tags=tags),
        lambda tags: services.cancel(tags=tags),
        lambda tags: services.delete(tags=tags),
        lambda tags: services.finish_many(tags=tags, hand_over=True),
        lambda tags: async_to_sync(services.asend)("work", tags=tags),
        lambda tags: async_to_sync(services.asend_many)("work", [{"tags": tags}]),
        lambda tags: async_to_sync(services.acancel)(tags=tags),
    ),
    ids=("fetch", "stats", "cancel", "delete", "finish_many", "asend", "asend_many", "acancel"),
)
def test_every_verb_refuses_bad_tags(queue, verb):  # R315
    job_in(JobState.COMPLETED, queue, tags=["red"])

    refuses_all(verb, BV.TAGS, InvalidOption)


def test_a_time_without_a_zone_says_what_to_do(queue):  # R315
    with refused(InvalidOption) as caught:
        services.send("work", start_after=BV.TIMES[0])

    assert "time zone" in str(caught.value)
    assert "timezone.now()" in str(caught.value)


def test_delay_and_start_after_exclude_each_other(queue):  # R315
    with refused(InvalidOption):
        services.send("work", delay=1, start_after=timezone.now())


@pytest.mark.parametrize("policy", ("queue", "exclusive_queue"))
@pytest.mark.parametrize("verb", ("send", "send_many"))
def test_an_unknown_way_with_duplicates_is_refused(policy, verb, request):  # B32
    queue = request.getfixturevalue(policy)
    calls: dict[str, Callable[[Any], object]] = {
        "send": lambda value: services.send(queue.name, on_duplicate=value),
        "send_many": lambda value: services.send_many(queue.name, [{}], on_duplicate=value),
    }

    refuses_all(
        calls[verb],
        ("", "raise", "Return", True, False, 0, 5, [], object(), BV.NUL),
        InvalidOption,
        option="on_duplicate",
    )


@pytest.mark.parametrize(
    ("name", "guess"),
    (("retry_limt", "retry_limit"), ("Retry_Delay", "retry_delay"), ("expire_in_second", "expire_in_seconds")),
)
def test_an_unknown_option_is_told_with_the_closest(queue, name, guess):  # R315
    for call in (send_with(name), send_many_with(name)):
        with refused(InvalidOption) as caught:
            call(1)
        assert name in str(caught.value)
        assert f"Did you mean {guess!r}?" in str(caught.value)


@pytest.mark.parametrize("option", ("policy", "partition", "dead_letter", "warning_queue_size", "delayed_head"))
def test_an_option_of_queues_is_not_one_of_jobs(queue, option):  # R315
    with refused(InvalidOption) as caught:
        send_with(option)(None)

    assert "option of queues" in str(caught.value)


def test_columns_that_are_no_options_cannot_be_set(queue):  # R186
    columns = ("state", "attempt", "seq", "position", "hold", "retry_count", "output", "assignee", "finalized_at")

    for column in columns:
        refuses_all(send_with(column), [1], InvalidOption, option=column)


def test_items_that_are_no_list_of_dicts_are_refused(queue):  # R185 R315
    items: tuple[Any, ...] = (
        None,
        5,
        "x",
        b"x",
        {},
        {"data": 1},
        [None],
        [5],
        ["x"],
        [[]],
        [{}, ()],
        object(),
        [{5: 1}],
        [{None: 1}],
    )

    refuses_all(lambda value: services.send_many("work", value), items, InvalidOption)
    refuses_all(lambda value: async_to_sync(services.asend_many)("work", value), items, InvalidOption)


@pytest.mark.parametrize("key", (None, ""))
def test_an_ordered_queue_refuses_a_job_without_a_key(fifo_queue, key):
    with refused(KeyRequired):
        services.send(fifo_queue.name, singleton_key=key)


# ------------------------------------------------------------------------------------------------ the other verbs


@pytest.mark.parametrize(
    ("option", "values"),
    (
        ("limit", (0, None, 10_001, *BV.COUNTS)),
        ("lease", (0, CENTURY, *BV.SECONDS)),
        ("worker", BV.TEXTS),
        ("incarnation", BV.UUIDS),
    ),
)
def test_fetch_refuses_bad_arguments(queue, option, values):  # R315
    sent(queue)

    refuses_all(lambda value: services.fetch("work", **{option: value}), values, InvalidOption, option=option)


@pytest.mark.parametrize(("option", "values"), (("worker", BV.TEXTS), ("incarnation", BV.UUIDS)))
def test_finish_many_refuses_bad_arguments_before_it_finishes_anything(queue, option, values):  # R315
    job = claimed(queue)

    refuses_all(
        lambda value: services.finish_many([(job, 1)], hand_over=True, **{option: value}),
        values,
        InvalidOption,
        option=option,
    )


@pytest.mark.parametrize("by_id", (False, True))
def test_failing_and_giving_back_refuse_bad_delays(queue, by_id):  # R315
    job = claimed(queue)
    target: Any = job.pk if by_id else job

    refuses_all(
        lambda value: services.fail(target, "boom", retry_after=value),
        (*(value for value in BV.SECONDS if value not in (-1, -BV.INFINITY)), CENTURY),  # the past is now
        InvalidOption,
        option="retry_after",
    )
    refuses_all(
        lambda value: services.give_back(target, "drained", delay=value),
        (*BV.SECONDS, CENTURY),
        InvalidOption,
        option="delay",
    )


def test_failing_refuses_a_reason_that_is_none(queue):  # R315
    job = claimed(queue)

    refuses_all(
        lambda value: services.fail(job, "boom", reason=value),
        ("", "nope", "x" * 50, 5, None, object(), BV.NUL),
        InvalidOption,
        option="reason",
    )


def test_a_lease_refuses_bad_seconds(queue):  # R315 B33
    job = claimed(queue)

    refuses_all(
        lambda value: services.set_visibility(job, value),
        (None, CENTURY, *BV.SECONDS),
        InvalidOption,
        option="seconds",
    )


def test_rescheduling_refuses_bad_times(queue):  # R315
    job = sent(queue)

    refuses_all(
        lambda value: services.reschedule(job.pk, value), (None, *BV.TIMES), InvalidOption, option="start_after"
    )


def test_skipping_refuses_no_reason(queue):  # R315
    job = job_in(JobState.FAILED, queue)

    refuses_all(lambda value: services.skip(job.pk, reason=value), ("", " \n", None), InvalidOption, option="reason")


def test_states_that_do_not_exist_are_refused(queue):  # R315
    sent(queue)

    refuses_all(lambda value: services.purge("work", value), BV.STATES, InvalidOption, option="state")
    refuses_all(lambda value: services.list_jobs("work", value), BV.STATES, InvalidOption, option="state")


def test_lists_refuse_bad_limits(queue):  # R315
    for option in ("limit", "offset"):
        refuses_all(
            lambda value, option=option: services.list_jobs("work", **{option: value}),  # type: ignore[misc]
            (None, *(value for value in BV.COUNTS if value != 2**31)),
            InvalidOption,
            option=option,
        )


def test_activity_refuses_bad_minutes(queue):  # R315
    refuses_all(lambda value: services.activity(minutes=value), (0, None, *BV.COUNTS), InvalidOption, option="minutes")


def test_cleanup_refuses_a_time_that_is_not_more_than_zero(queue):  # R297 R315
    job_in(JobState.COMPLETED, queue)

    refuses_all(services.cleanup, (0, 0.0, timedelta(0), timedelta(-1), *BV.SECONDS), InvalidOption, option="ttl")


def test_recovering_refuses_what_is_no_incarnation(queue):  # R315
    claimed(queue)

    refuses_all(lambda value: services.recover_lost([value]), (None, *BV.UUIDS), InvalidOption)


def test_what_was_seen_of_a_dead_worker_is_cleaned_and_never_refused(queue):
    incarnation = BV.SOME_ID
    sent(queue)
    (job,) = services.fetch("work", worker="ann", incarnation=incarnation)

    services.recover_lost([incarnation], how=f"{BV.NUL}{BV.SURROGATE}{'x' * 30_000}")

    assert now(job).state == "unknown_retry"
    assert "nul \N{REPLACEMENT CHARACTER}" in now(job).error


@pytest.mark.parametrize(("id", "ended"), ((3, "good"), ("no id", "good"), ("good", None), ("good", "now")))
def test_what_the_archive_has_is_named_by_id_and_time(queue, id, ended):
    pair: Any = (uuid7() if id == "good" else id, timezone.now() if ended == "good" else ended)

    with pytest.raises(InvalidOption):
        services.delete_archived(queue.name, [pair])


def test_what_is_sent_again_is_checked_like_any_other(queue):
    with pytest.raises(InvalidOption, match="priority"):
        services.send_again(queue.name, [{"priority": "high"}], [Source(uuid7(), "work", "")])
    assert not Job.objects.exists()


# ------------------------------------------------------------------------------------------------------- all of them

ELSEWHERE = {
    "cancel", "acancel", "touch", "finish_many",  # test_bad_input_ids.py
    "send", "asend", "send_many", "asend_many", "fetch", "purge", "list_jobs", "blocked_keys", "get_queue",
    "update_queue", "pause", "resume", "stats", "activity", "reset_running", "cleanup", "delete_queue",
    "create_queue", "create_fifo_queue",  # test_bad_input_queues.py
    "mark_worker_unresponsive",  # test_unresponsive.py
    "stop_worker",  # test_workers.py
    "recover_lost", "delete_archived", "send_again",
    "stream", "astream",  # test_stream.py
    "begin_operation", "advance_operation", "stop_operation", "resume_operation",  # test_many_jobs.py
    "create_schedule", "run_schedule", "send_due", "forget_old_runs",  # test_schedules.py
    "switch_schedule", "delete_schedule",  # test_schedule_edits.py
    "find_job",  # test_numbers.py
    "redrive",  # test_redrive.py
    "wait_for", "await_for",  # test_wait.py
}  # fmt: skip
WITHOUT_ARGUMENTS = {
    "check_lanes", "current_snapshot", "expire", "warn_backlogs", "forget_staged", "close", "release_pending",
    "send_alerts",
}  # fmt: skip


def test_every_verb_has_its_tests_of_bad_input():
    verbs = {name for name in services.__all__ if not name[0].isupper()}

    assert verbs == set(BY_ID) | ELSEWHERE | WITHOUT_ARGUMENTS


def test_the_queue_of_these_tests_is_named_work(queue):
    assert Queue.objects.get(pk="work") == queue
