"""Which jobs wait behind a blocked key, which of them runs next, and which jobs of its lane are around a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from ...counting import MANY
from ...engine import sql
from ...engine.databases import rows
from ...engine.paging import around
from ...engine.transactions import in_transaction
from ...models import Job, Queue
from ...policies import DelayedHead
from ...states import BLOCKING, Hold

AROUND = 3
LOOKED_AROUND = 20_000  # sequence numbers that are searched on each side of a job


class Waiting(NamedTuple):
    """A job that waits in a lane."""

    id: UUID
    seq: int
    hold: str | None
    start_after: datetime
    created_at: datetime


@dataclass(slots=True)
class Behind:
    """The jobs that wait behind a blocked key: how many, up to a limit, the oldest, and the next one to run."""

    number: int = 0
    front: list[Waiting] = field(default_factory=list)
    next: Waiting | None = None

    @property
    def is_capped(self) -> bool:
        return self.number > MANY

    @property
    def oldest_at(self) -> datetime | None:
        return min((job.created_at for job in self.front), default=None)


Lane = tuple[str, str]  # queue and key


def behind(lanes: Iterable[Lane], *, using: str) -> dict[Lane, Behind]:
    """The jobs that wait in these lanes of ordered queues, read by two statements."""
    unique = sorted(set(lanes))
    if not unique:
        return {}
    return in_transaction(using, partial(_behind, unique, using))


def _behind(lanes: list[Lane], using: str) -> dict[Lane, Behind]:
    params = {"queues": [queue for queue, _ in lanes], "keys": [key for _, key in lanes]}
    by_lane: dict[Lane, Behind] = {lane: Behind() for lane in lanes}
    for queue, key, number in rows(using, sql.inspect.WAITING_IN_LANES, {**params, "most": MANY + 1}):
        by_lane[queue, key].number = number
    for queue, key, *waiting in rows(using, sql.inspect.FRONTS_OF_LANES, {**params, "number": 1}):
        by_lane[queue, key].front.append(Waiting(*waiting))
    with_waiting_head = Queue.objects.using(using).filter(name__in=params["queues"], delayed_head=DelayedHead.BLOCK)
    names = set(with_waiting_head.values_list("name", flat=True))
    for (queue, _), lane in by_lane.items():
        not_delayed = [job for job in lane.front if job.hold != Hold.UNTIL or queue in names]
        lane.next = min(not_delayed or lane.front, key=lambda job: job.seq, default=None)
    return by_lane


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Jobs of the same key sent before a job and after it, in their order, and how many of an ordered key wait."""

    before: list[Job] = field(default_factory=list)
    after: list[Job] = field(default_factory=list)
    waiting: int = 0


def neighbours(job: Job, *, number: int = AROUND, using: str) -> Neighbours:
    """The jobs around this job in its key; none if the job has no key.

    Finished jobs are found only among the sequence numbers near its own, because no index has them by key.
    """
    if not job.singleton_key:
        return Neighbours()
    return in_transaction(using, partial(_neighbours, job, number, using))


def _neighbours(job: Job, number: int, using: str) -> Neighbours:
    lane = Job.objects.using(using).in_lane_of(job).defer("data", "output", "error", "attempts")
    near = {other.pk: other for other in around(lane, job.seq, number, LOOKED_AROUND)}
    near |= {other.pk: other for other in lane.filter(policy=job.policy).in_state(*BLOCKING)[:number]}
    params = {"queues": [job.queue_id], "keys": [job.singleton_key], "number": number}
    waiting = [row[2] for row in rows(using, sql.inspect.FRONTS_OF_LANES, params)]
    near |= {other.pk: other for other in lane.filter(pk__in=waiting)}
    near.pop(job.pk, None)
    ordered = sorted(near.values(), key=lambda other: other.seq)
    before = [other for other in ordered if other.seq < job.seq]
    after = [other for other in ordered if other.seq > job.seq]
    (counted,) = rows(using, sql.inspect.WAITING_IN_LANES, {**params, "most": MANY + 1})
    return Neighbours(before[-number:], after[:number], counted[2])
