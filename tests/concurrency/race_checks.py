"""What must have held in a run of the laboratory, proved from the records and the final table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby, pairwise
from uuid import UUID

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import FINAL, FailureReason, JobState

from .race_lab import Attempt, Plan, Report, Sent

UNIQUE_VIOLATION = "23505"
SECOND = 1_000_000_000


def check(plan: Plan, report: Report) -> None:
    """Every law of this plan; the message says which one was broken, and by whom."""
    assert not report.errors, "\n".join(report.errors[:3])
    assert UNIQUE_VIOLATION not in report.sqlstates, "the index had to refuse what a fetch offered"
    check_nothing_is_lost(plan, report)
    check_no_two_attempts_overlap(plan, report)
    check_attempts_count_up(report)
    if plan.ordered:
        check_each_job_has_its_key_until_it_ends(report)
        check_order(plan, report)
    assert services.check_lanes() == []


def check_nothing_is_lost(plan: Plan, report: Report) -> None:
    jobs = Job.objects.in_queue(plan.queue)
    states = dict(jobs.values_list("pk", "state"))
    sent = {one.id for one in report.sent}
    deleted, cancelled = report.ids_of("delete"), report.ids_of("cancel", "force", "skip") | set(report.stopped)
    if plan.skips:
        cancelled |= set(jobs.filter(reason=FailureReason.EXHAUSTED).values_list("pk", flat=True))
    assert not set(report.rolled_back) & states.keys(), "a send that was rolled back is there"
    assert sent == (states.keys() | deleted), "a job is missing, or there is a job that was not sent"
    assert not deleted & states.keys(), "a deleted job is there"
    assert set(states.values()) <= FINAL, "a job did not end"
    accepted = Counter(report.completed)
    assert all(count == 1 for count in accepted.values()), "a job was completed twice"
    for id, state in states.items():
        assert (state == JobState.COMPLETED) == (id in accepted), f"{id} is {state}"
        assert id in accepted or id in cancelled, f"{id} is {state}, and was not cancelled"


def check_no_two_attempts_overlap(plan: Plan, report: Report) -> None:
    """A forced cancel may let the next job start while the handler still runs: then its end is when that was asked."""
    forced: dict[UUID, int] = {}
    for deed in report.deeds:
        if deed.verb == "force":
            forced[deed.id] = min(deed.called, forced.get(deed.id, deed.called))
    for attempts in by_key(report).values():
        for before, after in pairwise(attempts):
            ended = min(before.ended, forced.get(before.id, before.ended))
            assert ended <= after.started, f"overlap: {before} and {after}"


def check_attempts_count_up(report: Report) -> None:
    numbers: dict[UUID, list[int]] = defaultdict(list)
    for attempt in sorted(report.attempts, key=lambda one: one.started):
        numbers[attempt.id].append(attempt.number)
    for id, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"attempts of {id}: {found}"


def check_each_job_has_its_key_until_it_ends(report: Report) -> None:
    """Between two attempts of a job no other job of its key starts."""
    for key, attempts in by_key(report).items():
        order = [id for id, _ in groupby(attempt.id for attempt in attempts)]
        assert len(order) == len(set(order)), f"jobs of {key} alternate"


def check_order(plan: Plan, report: Report) -> None:
    """What was committed before another send was called starts first; if delays let others pass, when it was due."""
    sent = {one.id: one for one in report.sent}
    moved = report.ids_of("reschedule")
    for attempts in by_key(report).values():
        firsts = [attempt for attempt in attempts if attempt.number == 1]
        _check_key(plan, [(attempt, sent[attempt.id]) for attempt in firsts], moved)


def _check_key(plan: Plan, firsts: list[tuple[Attempt, Sent]], moved: set[UUID]) -> None:
    """From the last start to the first: no job that started later may have been committed before this one was sent."""
    earliest: tuple[int, Attempt | None] = (2**63, None)
    passed: list[tuple[Attempt, Sent]] = []  # with a delay: they count from when they were due
    for attempt, one in reversed(firsts):
        committed, later = earliest
        assert committed >= one.called, f"order: {attempt} before {later}"
        for delayed, its in passed:
            due = its.committed + int(its.delay * SECOND)
            assert its.committed >= one.called or due >= attempt.called, (
                f"order: {attempt} before {delayed}, which was due"
            )
        if plan.blocks or (not one.delay and one.id not in moved):
            earliest = min(earliest, (one.committed, attempt), key=lambda pair: pair[0])
        elif one.id not in moved:
            passed.append((attempt, one))


def by_key(report: Report) -> dict[str, list[Attempt]]:
    """The attempts of each key, in the order in which they started."""
    keys: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(report.attempts, key=lambda one: (one.started, one.called)):
        keys[attempt.key].append(attempt)
    return keys


def summary(report: Report) -> str:
    counts: Iterable[tuple[str, int]] = sorted(report.counts.items())
    return (
        f"{len(report.sent)} sent, {len(report.rolled_back)} rolled back, {len(report.attempts)} attempts, "
        f"{len(report.completed)} completed; {dict(counts)}; server errors {dict(report.sqlstates)}"
    )
