from __future__ import annotations

from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

from ..engine.databases import database
from ..exceptions import NotOrdered
from ..models import Job
from ..services import get_queue


def assert_fifo(queue: str, *, using: str | None = None) -> None:
    """Assert that the jobs of each key of an ordered queue ran one after another, in the order they were sent.

    Later jobs may overtake a delayed job, and jobs sent by overlapping transactions have no order. Raises
    ``NotOrdered`` if the queue is not ordered.
    """
    alias = database(using)
    found = get_queue(queue, using=alias)
    if not found.is_ordered:
        raise NotOrdered(found.name, found.policy)
    jobs = Job.objects.using(alias).in_queue(found.name).order_by("singleton_key", "seq")
    problems = []
    for key, lane in groupby(jobs, key=attrgetter("singleton_key")):
        problems += [f"key {key!r}: {problem}" for problem in _problems(list(lane))]
    if problems:
        raise AssertionError(f"The queue {found.name!r} is out of order:\n  " + "\n  ".join(problems))


def _problems(lane: list[Job]) -> list[str]:
    problems = []
    for earlier in lane:
        for later in lane:
            if earlier.seq < later.seq and _passed(earlier, later):
                problems.append(f"job {later.pk} started before job {earlier.pk}, which was sent first")
    started = sorted((job for job in lane if job.started_at), key=attrgetter("started_at"))
    for before, after in pairwise(started):
        ended: Any = before.finalized_at
        if ended is None or ended > after.started_at:
            problems.append(f"job {after.pk} started before job {before.pk} had ended")
    return problems


def _passed(earlier: Job, later: Job) -> bool:
    """Whether the later job started first although it had to wait."""
    if later.started_at is None or earlier.first_start_after is not None:
        return False
    if earlier.sent_xid != later.sent_xid and earlier.sent_xid >= (later.claim_xmin or 0):
        return False  # the earlier job was not yet committed
    if earlier.started_at is None:
        return earlier.finalized_at is None
    return earlier.started_at > later.started_at
