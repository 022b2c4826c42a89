"""Each condition and each order of the statements that only read, with a row that only that one leaves out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import Rows, rows
from django_jobqueue.models import Job, Queue, QueueMinute, Schedule, Worker
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.states import BLOCKING, RETRYING, Hold, JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, rewrite

from .statements import held, turned_round

pytestmark = pytest.mark.django_db

HOUR = 3600


@pytest.fixture
def queues(db: None) -> tuple[Queue, Queue]:
    """Two queues; what is in the first must not be counted for the second."""
    Queue.objects.all().delete()
    return QueueFactory(name="a"), QueueFactory(name="b")


@pytest.fixture
def ordered(db: None) -> tuple[Queue, Queue]:
    Queue.objects.all().delete()
    first, second = (QueueFactory(name=name, policy=QueuePolicy.KEY_STRICT_FIFO) for name in "ab")
    return first, second


def ask(statement: str, params: Any = None) -> Rows:
    return rows("default", statement, params)


def rounded(found: Rows) -> Rows:
    """With the seconds in hours."""
    return [(*row[:-1], round(row[-1] / HOUR)) for row in found]


def letters_of(queue: Queue, name: str = "letters", **options: Any) -> Queue:
    """The queue that keeps the dead letters of this one."""
    letters = Queue.objects.filter(name=name).first() or QueueFactory(name=name, **options)
    Queue.objects.filter(pk=queue.pk).update(dead_letter=letters)
    return letters


def ended(queue: Queue, hours: float, state: JobState = JobState.FAILED, **options: Any) -> Job:
    return JobFactory(queue=queue, state=state, finalized_at=ago(hours=hours), **options)


# --------------------------------------------------------------------------------------------------------- counts


def test_each_waiting_job_is_counted_once_by_queue_state_and_hold(queues):
    plain, one = queues
    Queue.objects.filter(name="b").update(policy=QueuePolicy.SINGLETON)
    one.refresh_from_db()
    lanes = QueueFactory(name="c", policy=QueuePolicy.KEY_STRICT_FIFO)
    for queue in (plain, one, lanes):
        for number, state in enumerate((JobState.CREATED, JobState.RETRY, JobState.ACTIVE, JobState.FAILED)):
            JobFactory(queue=queue, state=state, singleton_key=f"{number}")
        held(queue, singleton_key="4")
    for queue in (one, lanes):
        JobFactory(queue=queue, singleton_key="4", hold=Hold.LANE)

    found = ask(sql.inspect.WAITING.format(state="state"), {"queues": None, "most": 10})

    fresh, again = JobState.CREATED.value, JobState.RETRY.value
    assert sorted(found, key=str) == [
        *(("a", fresh, hold, 1) for hold in ("until", None)),
        ("a", again, None, 1),
        *(("b", fresh, hold, 1) for hold in ("lane", "until", None)),
        ("b", again, None, 1),
        *(("c", fresh, hold, 1) for hold in ("lane", "until", None)),
        ("c", again, None, 1),
    ]


def test_jobs_that_failed_for_good_are_counted_by_queue_with_the_age_of_the_first_of_them(queues):
    a, b = queues
    jobs = [ended(a, 1), ended(b, 3), ended(b, 2), ended(b, 5, JobState.COMPLETED)]
    turned_round(*jobs)
    failed = ("standard", "failed")

    found = rounded(ask(sql.inspect.COUNT_DEAD, {"most": 10}))

    assert sorted(found) == [("a", *failed, 1, 1), ("b", *failed, 2, 3)]
    assert sorted(rounded(ask(sql.inspect.COUNT_DEAD, {"most": 1}))) == [("a", *failed, 1, 1), ("b", *failed, 1, 3)]


def test_the_oldest_fetchable_job_is_the_oldest_of_the_first_jobs_of_the_priorities(queues):
    a, b = queues
    ages = {"a": ((5, 1), (3, 4)), "b": ((5, 1), (5, 9), (3, 2), (3, 9), (1, 3), (1, 9))}
    jobs = [
        JobFactory(queue=queue, priority=priority, created_at=ago(hours=hours), start_after=ago(hours=hours))
        for queue in (a, b)
        for priority, hours in ages[queue.name]
    ]
    held(b, created_at=ago(hours=8), start_after=ago(hours=8))
    turned_round(*jobs)

    found = ask(sql.inspect.OLDEST_FETCHABLE)

    assert sorted((queue, round(seconds / HOUR)) for queue, seconds, _ in found) == [("a", 4), ("b", 3)]
    assert {id for *_, id in found} == {jobs[1].pk, jobs[6].pk}


@pytest.mark.parametrize("state", sorted(BLOCKING))
def test_a_job_sent_behind_a_blocking_one_could_not_run_now(ordered, state):
    a, b = ordered
    for queue in (a, b):
        JobFactory(queue=queue, singleton_key="x", hold="until" if state in RETRYING else None, state=state)
    JobFactory(queue=a, singleton_key="x", created_at=ago(hours=9), start_after=ago(hours=9))
    other = JobFactory(queue=b, singleton_key="y", created_at=ago(hours=5), start_after=ago(hours=5))

    assert [(queue, id) for queue, _, id in ask(sql.inspect.OLDEST_FETCHABLE)] == [("b", other.pk)]


def test_an_archive_takes_what_has_ended_and_blocks_no_key(queues):
    a, b = queues
    lanes = QueueFactory(policy=QueuePolicy.KEY_STRICT_FIFO)
    for queue in (a, b, b):
        ended(queue, 2)
    ended(b, 0)
    ended(lanes, 2)
    JobFactory(queue=b, state=JobState.ACTIVE)
    before = timezone.now() - timedelta(hours=1)

    assert ask(sql.inspect.COUNT_ARCHIVABLE.format(queues=""), [before]) == [(3,)]
    assert ask(sql.inspect.COUNT_ARCHIVABLE.format(queues=sql.inspect.OF_QUEUES), [before, ["b"]]) == [(2,)]


# ------------------------------------------------------------------------------------------------------- the overview


def pulse() -> tuple[Any, ...]:
    (found,) = ask(sql.inspect.PULSE, {"lost_seconds": 60, "overdue_seconds": 60, "queue": None, "most": 100})
    return found


def test_the_pulse_tells_the_last_failure_and_how_many_of_each_queue(queues):
    a, b = queues
    jobs = [ended(queue, hours) for queue, hours in ((a, 1), (b, 4), (b, 3))]
    ended(b, 2, JobState.COMPLETED)
    turned_round(*reversed(jobs))

    _, last, numbers, *_ = pulse()

    latest = {f"{job.finalized_at:%Y-%m-%d %H:%M:%S}" for job in (jobs[0], jobs[2])}
    assert {text[:19] for text in last.split(",")} == latest
    first = [f"{number} {jobs[place].finalized_at:%Y-%m-%d %H:%M:%S}" for number, place in ((1, 0), (2, 1))]
    assert sorted(text[:21] for text in numbers.split(",")) == first


def test_the_pulse_counts_the_running_jobs_of_one_queue_or_of_all_up_to_a_limit(queues):
    a, b = queues
    for queue, number in ((a, 1), (b, 3)):
        JobFactory.create_batch(number, queue=queue, state=JobState.ACTIVE)
    params = {"lost_seconds": 60, "overdue_seconds": 60}

    def running(queue: str | None, most: int) -> int:
        return int(ask(sql.inspect.PULSE, {**params, "queue": queue, "most": most})[0][0])

    assert (running(None, 100), running("b", 100), running("b", 2)) == (4, 3, 2)


def test_the_pulse_does_not_depend_on_where_rows_are(queues):
    turned_round()
    workers = [Worker.objects.create(name=f"w{number}") for number in range(2)]
    before = pulse()

    Queue.objects.filter(name="a").update(warning_queue_size=7)
    Worker.objects.filter(pk=min(worker.pk for worker in workers)).update(host="another")

    assert pulse() == before


def test_the_pulse_counts_schedules_that_are_on_and_overdue(queues):
    late, soon = timezone.now() - timedelta(hours=1), timezone.now() + timedelta(hours=1)
    for number, (enabled, moment) in enumerate(((True, late), (False, late), (True, soon))):
        schedule = Schedule.objects.create(name=f"s{number}", queue=queues[0], cron="* * * * *")
        Schedule.objects.filter(pk=schedule.pk).update(enabled=enabled, next_at=moment)

    assert pulse()[5] == 1


def queues_now(most: int = 100) -> dict[str, list[Any]]:
    params = {"since": timezone.now() - timedelta(hours=3), "most": most}
    return {name: facts for name, *facts in ask(sql.inspect.QUEUES, params)}


def test_a_queue_is_told_with_its_last_hour_and_how_many_waited_in_the_last_minute(queues):
    a, b = queues
    now = timezone.now().replace(second=0, microsecond=0)
    Queue.objects.filter(name="a").update(warning_queue_size=1, dead_letter="b", paused_at=now)
    for queue, first, last in ((a, 5, 1), (b, 1, 5)):
        for minutes, number in ((90, 9), (2, first), (1, last)):
            at = now - timedelta(minutes=minutes)
            QueueMinute.objects.create(queue=queue, minute=at, waiting=number, completed=number, failed=1)
    turned_round()

    assert queues_now() == {"a": [True, False, 6, 2, 1, 1, 0], "b": [False, True, 6, 2, 5, None, 0]}


def test_jobs_that_failed_for_good_since_then_are_counted_up_to_a_limit(queues):
    a, b = queues
    for queue, hours in ((a, 1), (a, 2), (a, 5), (b, 4)):
        ended(queue, hours)
    ended(b, 1, JobState.COMPLETED)

    assert [number for *_, number in queues_now().values()] == [2, 0]
    assert [number for *_, number in queues_now(most=1).values()] == [1, 0]


def groups(**limits: Any) -> Rows:
    params = {"queue": None, "keys": 100, "of_key": 100, "jobs": 100, **limits}
    found = ask(sql.inspect.BLOCKED_GROUPS, params)
    return sorted((queue, error, keys, behind) for queue, error, keys, behind, _, _ in found)


def test_blocked_keys_are_grouped_by_queue_and_error_with_the_jobs_behind_them(ordered, queue):
    a, b = ordered
    blocking = [
        ended(lanes, hours, singleton_key=key, fingerprint=error)
        for lanes, key, error, hours in ((a, "x", "e", 3), (a, "y", "e", 2), (a, "z", "f", 1), (b, "x", "e", 1))
    ]
    ended(queue, 1, fingerprint="e")
    ended(a, 1, JobState.COMPLETED, singleton_key="w")
    for lanes, key, number in ((a, "x", 3), (a, "y", 1), (b, "x", 1), (a, "w", 5)):
        JobFactory.create_batch(number, queue=lanes, singleton_key=key, hold=Hold.LANE)
    turned_round(*blocking)

    assert groups() == [("a", "e", 2, 4), ("a", "f", 1, 0), ("b", "e", 1, 1)]
    assert groups(queue="b") == [("b", "e", 1, 1)]
    assert groups(of_key=1) == [("a", "e", 2, 2), ("a", "f", 1, 0), ("b", "e", 1, 1)]
    assert sum(behind for *_, behind in groups(jobs=2)) == 2
    assert groups(keys=1) == [("a", "e", 1, 3), ("b", "e", 1, 1)]  # the longest blocked
    example = {(queue, error): id for queue, error, *_, id in ask(
        sql.inspect.BLOCKED_GROUPS, {"queue": None, "keys": 100, "of_key": 100, "jobs": 100}
    )}  # fmt: skip
    assert example["a", "e"] == blocking[0].pk


# -------------------------------------------------------------------------------------------------- lanes and groups


def in_lanes(ordered: tuple[Queue, Queue]) -> list[Job]:
    """Jobs of two lanes, so that each differs from the first lane's in one respect."""
    a, b = ordered
    JobFactory(queue=a, singleton_key="x")
    JobFactory(queue=b, singleton_key="y")
    JobFactory(queue=b, singleton_key="x", state=JobState.FAILED)
    return [JobFactory(queue=b, singleton_key="x", hold=hold) for hold in (None, Hold.LANE, Hold.UNTIL) * 2]


def test_the_front_of_a_lane_is_its_first_job_of_each_hold(ordered):
    wanted = in_lanes(ordered)
    turned_round(*wanted)

    found = ask(sql.inspect.FRONTS_OF_LANES, {"queues": ["b"], "keys": ["x"], "number": 1})

    assert {id for _, _, id, *_ in found} == {job.pk for job in wanted[:3]}
    assert len(found) == 3


def test_the_jobs_that_wait_in_a_lane_are_counted(ordered):
    wanted = in_lanes(ordered)

    found = ask(sql.inspect.WAITING_IN_LANES, {"queues": ["b"], "keys": ["x"], "most": 10})

    assert found == [("b", "x", len(wanted))]


def test_failures_are_grouped_by_their_fingerprint(queues):
    a, _ = queues
    failed = {"state": JobState.FAILED, "queue": a}
    jobs = {mark: [JobFactory(fingerprint=mark, **failed) for _ in range(3)] for mark in "cba"}
    JobFactory(fingerprint="", **failed)
    JobFactory(queue=a, state=JobState.RETRY, fingerprint="d")
    turned_round()

    found = ask(sql.inspect.FAILURE_GROUPS, {"groups": 10, "jobs": 2})

    assert [(mark, number, ids) for mark, number, _, _, _, ids, _, _ in sorted(found)] == [
        (mark, 2, [jobs[mark][2].pk]) for mark in "abc"
    ]
    assert [mark for mark, *_ in ask(sql.inspect.FAILURE_GROUPS, {"groups": 1, "jobs": 2})] == ["a"]


def test_failures_are_counted_by_the_hours_since(queues):
    a, _ = queues
    for minutes in (1, 50, 70, 130, 23 * 60 + 59, 24 * 60 + 1):
        JobFactory(queue=a, state=JobState.FAILED, fingerprint="x", attempt_finished_at=ago(minutes=minutes))
    JobFactory(queue=a, state=JobState.RETRY, fingerprint="x", attempt_finished_at=ago(minutes=1))

    ((*_, hours),) = ask(sql.inspect.FAILURE_GROUPS, {"groups": 10, "jobs": 10})

    assert hours == [2, 1, 1, *[0] * 20, 1]


# ------------------------------------------------------------------------------------------------------------- health


def test_the_handlers_of_the_first_jobs_and_of_the_first_delayed_jobs_are_counted_by_queue(queues):
    a, b = queues
    jobs = [JobFactory(queue=b, name=name) for name in ("first", "second")]
    jobs += [held(b, name=name, start_after=ago(hours=-hours)) for name, hours in (("soon", 1), ("later", 2))]
    JobFactory(queue=a, name="elsewhere")
    JobFactory(queue=a, name="running", state=JobState.ACTIVE, priority=9)
    JobFactory(queue=letters_of(a), name="dead letter")
    turned_round(*jobs)

    assert ask(sql.inspect.WAITING_HANDLERS, {"n": 1}) == [
        ("a", "elsewhere", 1),
        ("b", "first", 1),
        ("b", "soon", 1),
    ]


def test_the_next_job_of_each_queue_is_the_one_that_a_fetch_would_claim(queues):
    a, b = queues
    jobs = [JobFactory(queue=b, created_at=ago(hours=hours)) for hours in (2, 3)]
    JobFactory(queue=a, created_at=ago(hours=1))
    held(a, created_at=ago(hours=5), priority=9)
    turned_round(*jobs)
    JobFactory(queue=letters_of(a))
    Queue.objects.filter(name="a").update(warning_queue_size=7)  # its row lies behind the other now

    assert rounded(ask(sql.inspect.NEXT_TO_FETCH)) == [("a", False, 1), ("b", False, 2)]


def test_blocked_keys_are_counted_by_queue_with_the_age_of_the_first(ordered):
    a, b = ordered
    jobs = [ended(queue, hours, singleton_key=f"{hours}") for queue, hours in ((a, 1), (b, 3), (b, 2))]
    ended(b, 5, JobState.COMPLETED)
    ended(letters_of(a, policy=QueuePolicy.KEY_STRICT_FIFO), 4, singleton_key="4")
    turned_round(*jobs)

    assert rounded(ask(sql.inspect.BLOCKED_KEYS, [10])) == [("a", 1, 1), ("b", 2, 3)]
    assert rounded(ask(sql.inspect.BLOCKED_KEYS, [1])) == [("a", 1, 1), ("b", 1, 3)]


def test_dead_letters_that_wait_or_failed_are_counted_by_queue_with_the_age_of_the_oldest(queues):
    a, b = queues
    first, second = letters_of(a), letters_of(b, name="more letters")
    letters_of(QueueFactory(name="c"), name=first.name)
    jobs = [JobFactory(queue=first, created_at=ago(hours=hours), priority=hours) for hours in (1, 2)]
    jobs += [ended(first, hours, created_at=ago(hours=9 - hours)) for hours in (3, 4)]
    held(first, created_at=ago(hours=20))
    for state in (JobState.ACTIVE, JobState.COMPLETED, JobState.STOPPED):
        JobFactory(queue=first, state=state, created_at=ago(hours=21))
    JobFactory(queue=second, created_at=ago(hours=7))
    JobFactory(queue=a, created_at=ago(hours=22))
    turned_round(*jobs)

    assert rounded(ask(sql.inspect.DEAD_LETTERS, {"most": 10})) == [("letters", 4, 6), ("more letters", 1, 7)]
    assert rounded(ask(sql.inspect.DEAD_LETTERS, {"most": 1})) == [("letters", 2, 5), ("more letters", 1, 7)]


def test_only_active_jobs_past_their_deadline_are_overdue(queues):
    a, b = queues
    for queue, hours, state in (
        (b, 2, JobState.ACTIVE),
        (a, 3, JobState.ACTIVE),
        (a, 0, JobState.ACTIVE),
        (a, 9, JobState.CANCELLING),
    ):
        rewrite(JobFactory(queue=queue, state=state), expire_at=ago(hours=hours))

    assert rounded(ask(sql.inspect.OVERDUE, [60, 10])) == [("a", 1, 3), ("b", 1, 2)]


def test_jobs_that_should_have_been_deleted_are_counted_by_queue_with_the_age_of_the_first(queues):
    a, b = queues
    ages = ((a, 1), (b, 3), (b, 2), (b, 0))
    jobs = [ended(queue, 9, JobState.COMPLETED, delete_at=ago(hours=hours)) for queue, hours in ages]
    turned_round(*jobs)

    assert rounded(ask(sql.inspect.NOT_DELETED, [60, 10])) == [("a", 1, 1), ("b", 2, 3)]
    assert rounded(ask(sql.inspect.NOT_DELETED, [60, 1])) == [("a", 1, 1), ("b", 1, 3)]
