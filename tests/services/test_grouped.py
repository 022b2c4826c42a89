"""Grouped reads: the worked examples, and what keeps a group waiting."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidOption
from django_jobqueue.grouping import Grouping
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db


def send_groups(queue: Queue, **sizes: int) -> None:
    """Jobs named after their group and place, group after group."""
    for group, size in sizes.items():
        services.send_many(queue.name, [{"data": f"{group}{n + 1}", "group_key": group} for n in range(size)])


def names(jobs: Iterable[Job]) -> str:
    return " ".join(job.data for job in jobs)


def read(queue: Queue, limit: int, grouping: str, **options: object) -> str:
    return names(services.fetch(queue.name, limit, grouping=grouping, **options))  # type: ignore[arg-type]


def done(jobs: Iterable[Job]) -> None:
    for job in jobs:
        services.complete(job)


# ------------------------------------------------------------------------------------------------- worked examples


def test_round_robin_goes_through_the_groups_in_layers(queue):  # R032 R038 R040 R041 R044
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, 10, "round_robin") == "A1 B1 C1 A2 B2 C2 A3 B3 A4 A5"


@pytest.mark.parametrize(
    ("limit", "expected"), ((1, "A1"), (2, "A1 B1"), (4, "A1 B1 C1 A2"), (7, "A1 B1 C1 A2 B2 C2 A3"))
)
def test_round_robin_gives_no_more_than_was_asked_for(queue, limit, expected):  # R039 R042
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, limit, "round_robin") == expected


def test_round_robin_does_not_let_a_large_group_starve_a_small_one(queue):  # R043
    send_groups(queue, A=500, B=1)

    assert read(queue, 4, "round_robin") == "A1 B1 A2 A3"


def test_fill_takes_all_it_can_from_the_oldest_group(queue):  # R045 R046 R047 R048 R049
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, 3, "fill") == "A1 A2 A3"


def test_fill_goes_on_to_the_next_groups_only_to_fill_the_batch(queue):  # R047 R049
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, 10, "fill") == "A1 A2 A3 A4 A5 B1 B2 B3 C1 C2"


def test_head_gives_one_of_each_group(queue):  # R050 R051 R055 R058
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, 10, "head") == "A1 B1 C1"


def test_head_takes_the_oldest_groups(queue):  # R055 R058
    send_groups(queue, A=5, B=3, C=2)

    assert read(queue, 2, "head") == "A1 B1"


def test_sent_alternately_the_groups_are_read_the_same(queue):  # R033 R044
    for data in ("B1", "A1", "A2", "B2", "C1", "A3"):
        sent(queue, data, group_key=data[0])

    assert read(queue, 10, "round_robin") == "B1 A1 C1 B2 A2 A3"


@pytest.mark.parametrize("grouping", Grouping)
def test_a_grouping_may_be_given_by_its_name_or_as_a_value(queue, grouping):  # R038
    sent(queue, "A1", group_key="A")

    assert names(services.fetch(queue.name, grouping=grouping)) == "A1"
    assert services.fetch(queue.name, grouping=grouping.value) == []


@pytest.mark.parametrize("grouping", ("", "rr", "HEAD", 1, True, ["fill"]))
def test_an_unknown_grouping_is_refused(queue, grouping):
    with pytest.raises(InvalidOption, match="grouping"):
        services.fetch(queue.name, grouping=grouping)


# -------------------------------------------------------------------------------------------- what keeps it waiting


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_group_with_a_job_running_is_passed_over(queue, grouping):  # R034 R036 R052 R053
    send_groups(queue, A=2, B=2)
    (first,) = services.fetch(queue.name, 1, grouping="head")

    assert read(queue, 1, grouping) == "B1"
    assert read(queue, 10, grouping) == ""
    services.complete(first)
    assert read(queue, 1, grouping) == "A2"


def test_a_job_running_anywhere_in_a_group_keeps_it_waiting(queue):  # R036 R068
    jobs = [sent(queue, f"A{n}", group_key="A", priority=n) for n in (1, 2)]
    assert services.fetch(queue.name) == [jobs[1]]  # a plain reader goes by priority

    assert read(queue, 10, "fill") == ""


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize("state", (JobState.FAILED, JobState.EXPIRED, JobState.CANCELLING))
def test_a_head_that_cannot_go_keeps_its_group_waiting(queue, grouping, state):  # R052 R067
    JobFactory(queue=queue, group_key="A", state=state)
    send_groups(queue, A=2, B=1)

    assert read(queue, 10, grouping) == "B1"


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_delayed_head_keeps_its_group_waiting(queue, grouping):  # R052 R054
    head = sent(queue, "A1", group_key="A", delay=60)
    sent(queue, "A2", group_key="A")

    assert read(queue, 10, grouping) == ""
    rewrite(head, start_after=ago(seconds=1))
    assert read(queue, 1, grouping) == "A1"


def test_fill_and_round_robin_stop_at_the_first_job_that_cannot_go(queue):  # R033 R041
    for n in range(1, 5):
        sent(queue, f"A{n}", group_key="A", delay=60 if n == 3 else None)
    send_groups(queue, B=2)

    with transaction.atomic():
        assert read(queue, 10, "fill") == "A1 A2 B1 B2"
        transaction.set_rollback(True)
    assert read(queue, 10, "round_robin") == "A1 B1 A2 B2"


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize(
    "end",
    (
        lambda job: services.complete(job),
        lambda job: services.stop(job),
        lambda job: (services.fail(job, "no", for_good=True), services.skip(job.pk, reason="no")),
        lambda job: (services.fail(job, "no", for_good=True), services.delete(job.pk)),
        lambda job: services.purge(job.queue_id, state="active"),
    ),
    ids=["completed", "stopped", "skipped", "deleted", "purged"],
)
def test_a_group_goes_on_when_its_head_is_out_of_the_way(queue, grouping, end):  # R066 R067
    send_groups(queue, A=2)
    (head,) = services.fetch(queue.name, grouping="head")

    end(head)

    assert read(queue, 1, grouping) == "A2"


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_failing_job_is_tried_again_before_the_rest_of_its_group(queue, grouping):  # R064 R067
    send_groups(queue, A=2, B=1)
    (head,) = services.fetch(queue.name, grouping="head")

    services.fail(head, "no")
    assert read(queue, 2, "head") in ("A1 B1", "B1 A1")

    services.fail(head.pk, "no", retry_after=60)
    assert read(queue, 10, grouping) == ""


def test_a_job_that_used_up_its_retries_can_be_retried_and_goes_first(queue):  # R067
    send_groups(queue, A=2)
    (head,) = services.fetch(queue.name, grouping="head")
    services.fail(head, "no", for_good=True)
    assert read(queue, 10, "fill") == ""

    services.retry(head.pk)

    assert read(queue, 10, "fill") == "A1 A2"


# --------------------------------------------------------------------------------------------------- the visibility


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_lease_is_set_on_every_job_that_is_returned(queue, grouping):  # R039 R045 R050 R057
    send_groups(queue, A=2, B=1)

    jobs = services.fetch(queue.name, 10, grouping=grouping, lease=30)

    for job in map(reread, jobs):
        assert job.lease_until
        assert job.assigned_at
        assert job.lease_until - job.assigned_at == timedelta(seconds=30)


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_job_whose_lease_ran_out_is_handed_out_again(queue, grouping):  # R064 B33
    send_groups(queue, A=2)
    (head,) = services.fetch(queue.name, grouping="head", lease=30)
    rewrite(head, lease_until=ago(seconds=1))

    (again,) = services.fetch(queue.name, 1, grouping=grouping)

    assert (again, again.attempt, reread(again).retry_count) == (head, 2, 0)


def test_visibility_can_be_extended_and_set_to_zero(queue):  # R065
    send_groups(queue, A=2)
    (head,) = services.fetch(queue.name, grouping="head", lease=30)

    services.set_visibility(head, 300)
    now = reread(head)
    assert now.lease_until
    assert now.assigned_at
    assert now.lease_until - now.assigned_at > timedelta(seconds=290)
    services.set_visibility(head, 0)

    assert read(queue, 10, "fill") == "A1 A2"
    assert reread(head).retry_count == 0


# ------------------------------------------------------------------------------------------------- the default group


@pytest.mark.parametrize("grouping", Grouping.values)
def test_jobs_without_a_group_are_one_group(queue, grouping):  # R059 B20
    for n in range(1, 4):
        sent(queue, f"D{n}")
    (first,) = services.fetch(queue.name, grouping="head")

    assert first.data == "D1"
    assert read(queue, 10, grouping) == ""
    services.complete(first)
    assert read(queue, 1, grouping) == "D2"


def test_the_default_group_takes_its_place_among_the_others(queue):  # R059
    for data, group in (("A1", "A"), ("D1", None), ("B1", "B"), ("D2", None), ("A2", "A")):
        sent(queue, data, group_key=group)

    with transaction.atomic():
        assert read(queue, 10, "fill") == "A1 A2 D1 D2 B1"
        transaction.set_rollback(True)
    with transaction.atomic():
        assert read(queue, 10, "head") == "A1 D1 B1"
        transaction.set_rollback(True)
    assert read(queue, 10, "round_robin") == "A1 D1 B1 A2 D2"


@pytest.mark.parametrize("state", (JobState.RETRY, JobState.UNKNOWN_RETRY))
def test_a_retry_goes_first_in_the_default_group(queue, state):  # R059 R064
    retry = JobFactory(queue=queue, state=state, data="D1")
    rewrite(retry, position=reread(retry).seq + 1_000)
    sent(queue, "D2")

    assert read(queue, 10, "fill") == "D1 D2"


@pytest.mark.parametrize("state", (JobState.FAILED, JobState.EXPIRED, JobState.ACTIVE, JobState.CANCELLING))
def test_what_cannot_go_keeps_the_default_group_waiting(queue, state):  # R059 R067
    JobFactory(queue=queue, state=state)
    sent(queue, "D2")
    sent(queue, "A1", group_key="A")

    assert read(queue, 10, "fill") == "A1"


def test_a_delayed_job_keeps_the_default_group_waiting_from_its_place_on(queue):  # R052 R059
    sent(queue, "D1")
    delayed = sent(queue, "D2", delay=60)
    sent(queue, "D3")
    assert reread(delayed).hold == Hold.UNTIL

    assert read(queue, 10, "fill") == "D1"


def test_the_default_group_is_found_behind_a_large_one(queue):  # R043 R059
    send_groups(queue, A=2_000)
    sent(queue, "D1")

    assert read(queue, 2, "round_robin") == "A1 D1"


# ------------------------------------------------------------------------------------------- which groups are found


def send_large_group(queue: Queue) -> None:
    """More jobs than a look along the queue sees, of a group that waits: the others are then found group by group."""
    JobFactory(queue=queue, group_key="M", state=JobState.FAILED)
    services.send_many(queue.name, [{"group_key": "M", "tags": ["t"]}] * 150)


OBSTACLES: dict[str, tuple[dict[str, Any], ...]] = {
    "a head that failed": ({"state": JobState.FAILED}, {}),
    "a head that is not due": ({"hold": Hold.UNTIL, "start_after": timezone.now() + timedelta(days=1)}, {}),
    "a head with other tags": ({"tags": []}, {}),
    "a job that runs": ({}, {"state": JobState.ACTIVE}),
}


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize("is_far", (False, True), ids=["in front", "behind a large group"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_groups_that_wait_take_no_place_from_others(queue, obstacle, is_far, grouping):  # R043 R052
    """A read asks only a few times for groups, so those that wait must not be among them."""
    if is_far:
        send_large_group(queue)
    for group in "ABCDEF":
        for options in OBSTACLES[obstacle]:
            JobFactory(queue=queue, group_key=group, **{"tags": ["t"]} | options)
    sent(queue, "Z1", group_key="Z", tags=["t"])

    assert read(queue, 1, grouping, tags=["t"]) == "Z1"


@pytest.mark.parametrize("is_far", (False, True), ids=["in front", "behind a large group"])
def test_the_oldest_group_goes_first_whatever_its_name(queue, is_far):  # R055 R058
    if is_far:
        send_large_group(queue)
    for group in "CAB":
        sent(queue, f"{group}1", group_key=group)

    assert read(queue, 2, "head") == "C1 A1"


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize("is_far", (False, True), ids=["in front", "behind a large group"])
def test_groups_of_another_queue_do_not_count(queue, is_far, grouping):  # R034 R036
    """Older jobs in groups of the same names, in every state; and some of our own that have ended."""
    other = QueueFactory(name="other")
    for group in ("A", "", "Z"):
        for state in (JobState.FAILED, JobState.RETRY, JobState.ACTIVE, JobState.CREATED):
            JobFactory(queue=other, group_key=group, state=state)
        JobFactory(queue=queue, group_key=group, state=JobState.COMPLETED)
    if is_far:
        send_large_group(queue)
    for group in ("A", "", "Z"):
        sent(queue, f"{group or 'D'}1", group_key=group)

    assert read(queue, 3, grouping) == "A1 D1 Z1"


# ------------------------------------------------------------------------------- when one of a batch does not succeed


@pytest.mark.parametrize(
    "end",
    (
        lambda job: services.fail(job, "no"),
        lambda job: services.fail(job.pk, "no", for_good=True),
        lambda job: services.finish_many(failed=[(job, "no")]),
        lambda job: services.give_back(job, "not now", delay=60),
        lambda job: services.set_visibility(job, 0),
        lambda job: (rewrite(job, expire_at=ago(hours=1)), services.expire()),
    ),
    ids=["failed", "failed for good", "failed by a worker", "given back", "made visible", "expired"],
)
def test_the_rest_of_its_group_goes_back_uncharged(queue, end):  # B19 R067
    send_groups(queue, A=4, B=1)
    first, second, third, fourth, other = services.fetch(queue.name, 5, grouping="fill", worker="w")
    services.complete(first)

    end(second)

    assert [reread(job).state for job in (third, fourth)] == [JobState.RETRY] * 2
    assert [reread(job).retry_count for job in (third, fourth)] == [0, 0]
    assert reread(third).error == "a job ahead of it in its group did not succeed"
    assert reread(other).state == JobState.ACTIVE
    with pytest.raises(ClaimLost):
        services.complete(third)


def test_what_went_back_comes_again_in_its_order(queue):  # B19 R033
    send_groups(queue, A=4)
    first, *_ = services.fetch(queue.name, 3, grouping="fill")
    services.fail(first, "no")

    assert read(queue, 10, "fill") == "A1 A2 A3 A4"


def test_a_job_that_was_stopped_does_not_hold_up_the_rest_of_its_batch(queue):  # B19
    send_groups(queue, A=2)
    first, second = services.fetch(queue.name, 2, grouping="fill")

    services.stop(first)

    services.complete(second)
    assert reread(second).state == JobState.COMPLETED


def test_the_default_group_goes_back_too(queue):  # B19 R059
    for n in range(3):
        sent(queue, n)
    first, second, third = services.fetch(queue.name, 3, grouping="fill")

    services.fail(first, "no")

    assert {reread(second).state, reread(third).state} == {JobState.RETRY}


def test_a_plain_batch_stays_as_it_is(queue):  # R035
    send_groups(queue, A=2)
    first, second = services.fetch(queue.name, 2)

    services.fail(first, "no")

    assert reread(second).state == JobState.ACTIVE


def test_a_plain_batch_after_a_grouped_one_stays_as_it_is(queue):  # R035 R068
    send_groups(queue, A=2)
    for job in services.fetch(queue.name, 2, grouping="fill"):
        services.give_back(job.pk, "not now") if reread(job).state == JobState.ACTIVE else None
    first, second = services.fetch(queue.name, 2)

    services.fail(first, "no")

    assert reread(second).state == JobState.ACTIVE


# ------------------------------------------------------------------------------------------ beside everything else


def test_plain_reads_do_not_look_at_groups(queue):  # R035 R068
    send_groups(queue, A=3)

    assert names(services.fetch(queue.name, 2)) == "A1 A2"
    assert names(services.fetch(queue.name, 2)) == "A3"


def test_a_grouped_reader_goes_on_where_a_plain_one_was(queue):  # R068
    send_groups(queue, A=3, B=1)
    done(services.fetch(queue.name, 2))

    assert read(queue, 10, "fill") == "A3 B1"


@pytest.mark.parametrize("grouping", Grouping.values)
def test_an_ordered_queue_gives_one_per_key(fifo_queue, grouping):  # B19
    for data in ("A1", "A2", "B1"):
        sent(fifo_queue, data, singleton_key=data[0])

    assert read(fifo_queue, 10, grouping) == "A1 B1"


@pytest.mark.parametrize("name", ("singleton_queue", "stately_queue", "short_queue", "exclusive_queue"))
def test_other_policies_are_refused(request, name):
    queue = request.getfixturevalue(name)

    with pytest.raises(InvalidOption, match=f"queue '{queue.name}' has the policy"):
        services.fetch(queue.name, grouping="fill")


def test_a_group_waits_for_a_reader_that_takes_the_tags_of_its_head(queue):  # R033 R138
    sent(queue, "A1", group_key="A", tags=["red"])
    sent(queue, "A2", group_key="A", tags=["blue"])
    sent(queue, "B1", group_key="B", tags=["blue"])

    assert read(queue, 10, "fill", tags=["blue"]) == "B1"
    assert read(queue, 10, "fill", tags=["red"]) == "A1"


def test_groups_rank_by_the_priority_of_their_heads(queue):  # R319 B6
    sent(queue, "A1", group_key="A")
    sent(queue, "A2", group_key="A", priority=9)
    sent(queue, "B1", group_key="B", priority=5)

    assert read(queue, 10, "fill") == "B1 A1 A2"


def test_a_paused_queue_gives_nothing(queue):
    send_groups(queue, A=1)
    services.pause(queue.name)

    assert read(queue, 10, "fill") == ""


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_partitioned_queue_is_read_the_same(partitioned_queue, grouping):  # R037
    send_groups(partitioned_queue, A=2, B=1)
    sent(partitioned_queue, "D1")

    expected = {"round_robin": "A1 B1 D1 A2", "fill": "A1 A2 B1 D1", "head": "A1 B1 D1"}
    assert read(partitioned_queue, 10, grouping) == expected[grouping]


@pytest.mark.parametrize("grouping", Grouping.values)
def test_a_read_that_was_rolled_back_has_read_nothing(queue, grouping):  # R036
    send_groups(queue, A=2, B=1)
    with transaction.atomic():
        before = read(queue, 10, grouping)
        transaction.set_rollback(True)

    assert read(queue, 10, grouping) == before


@pytest.mark.parametrize("grouping", Grouping.values)
@pytest.mark.parametrize("sizes", ((300, 1), (3, 150)), ids=["many groups", "large groups"])
def test_everything_is_read_in_the_order_of_each_group(queue, grouping, sizes):  # R033 R041
    groups, size = sizes
    send_groups(queue, **{f"g{n}.": size for n in range(groups)})
    seen: list[str] = []

    while jobs := services.fetch(queue.name, 7, grouping=grouping):
        seen += [job.data for job in jobs]
        services.finish_many([(job, None) for job in jobs])

    assert len(seen) == groups * size
    for n in range(groups):
        assert [one for one in seen if one.startswith(f"g{n}.")] == [f"g{n}.{place + 1}" for place in range(size)]
