"""Who waits behind a blocked key, what runs next there, and who stands around a job in its lane."""

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
from ...engine.paging import look
from ...engine.transactions import in_transaction
from ...models import Job, Queue
from ...policies import DelayedHead
from ...states import BLOCKING, Hold

AROUND = 3
LOOKED_AROUND = 20_000  # numbers looked through on each side of a job


class Waiting(NamedTuple):
    """A job that waits in a lane."""

    id: UUID
    seq: int
    hold: str | None
    start_after: datetime
    created_at: datetime


@dataclass(slots=True)
class Behind:
    """What waits behind the job that blocks a key: how many as far as is counted, the oldest, and what runs next."""

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
    """Who waits in these lanes of ordered queues, by two statements."""
    wanted = sorted(set(lanes))
    if not wanted:
        return {}
    return in_transaction(using, partial(_behind, wanted, using))


def _behind(lanes: list[Lane], using: str) -> dict[Lane, Behind]:
    given = {"queues": [queue for queue, _ in lanes], "keys": [key for _, key in lanes]}
    found: dict[Lane, Behind] = {lane: Behind() for lane in lanes}
    for queue, key, number in rows(using, sql.inspect.WAITING_IN_LANES, {**given, "most": MANY + 1}):
        found[queue, key].number = number
    for queue, key, *waiting in rows(using, sql.inspect.FRONTS_OF_LANES, {**given, "number": 1}):
        found[queue, key].front.append(Waiting(*waiting))
    blocks = Queue.objects.using(using).filter(name__in=given["queues"], delayed_head=DelayedHead.BLOCK)
    patient = set(blocks.values_list("name", flat=True))
    for (queue, _), one in found.items():
        passed = [job for job in one.front if job.hold != Hold.UNTIL or queue in patient]
        one.next = min(passed or one.front, key=lambda job: job.seq, default=None)
    return found


def neighbours(job: Job, *, number: int = AROUND, using: str) -> tuple[list[Job], list[Job]]:
    """Jobs of the same key sent before it and after it, nearest last and first; none where jobs have no key.

    Finished ones are found only among the numbers near its own, because no index knows them by key.
    """
    if not job.singleton_key:
        return [], []
    return in_transaction(using, partial(_neighbours, job, number, using))


def _neighbours(job: Job, number: int, using: str) -> tuple[list[Job], list[Job]]:
    lane = Job.objects.using(using).in_lane_of(job).defer("data", "output", "attempts")
    near = {other.pk: other for other in look(lane, number, before=job.seq, most=LOOKED_AROUND).jobs}
    near |= {other.pk: other for other in look(lane, number, after=job.seq, most=LOOKED_AROUND).jobs}
    near |= {other.pk: other for other in lane.filter(policy=job.policy).in_state(*BLOCKING)[:number]}
    given = {"queues": [job.queue_id], "keys": [job.singleton_key], "number": number}
    waiting = [row[2] for row in rows(using, sql.inspect.FRONTS_OF_LANES, given)]
    near |= {other.pk: other for other in lane.filter(pk__in=waiting)}
    near.pop(job.pk, None)
    ordered = sorted(near.values(), key=lambda other: other.seq)
    before = [other for other in ordered if other.seq < job.seq]
    return before[-number:], [other for other in ordered if other.seq > job.seq][:number]
