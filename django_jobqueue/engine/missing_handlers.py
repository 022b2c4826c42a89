"""Jobs that a worker claimed and has no handler for: they return to the queue, for a worker that has one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from ..conf import get_settings
from ..models import Job
from ..states import RUNNING, UNHANDLED, FailureReason, JobState
from . import announcements, sql
from .claims import claim_of_job
from .databases import execute, rows
from .lanes import MOST_KEYS, chunks, leaves_of
from .retry_decision import ReturnToQueue
from .transactions import at, in_transaction
from .transitions import Answers, Change, move

RELEASED_AT_ONCE = 1_000
PAUSES = (0.002, 0.005)

HandlerKey = tuple[str, str]  # a queue, and the name of a handler


def announced(key: HandlerKey) -> str:
    """How a worker announces a handler. A job without a name runs in a handler of its queue."""
    queue, name = key
    return name or f"jobs of {queue} without a name"


def announce(
    me: UUID, queues: Sequence[str], handlers: Sequence[str] | None, lacks: Sequence[str], *, using: str
) -> None:
    """Store what this process can run; with ``None`` it runs jobs of every name."""
    given = {"me": me, "queues": list(queues), "handlers": None if handlers is None else list(handlers)}
    execute(using, sql.missing_handlers.ANNOUNCE, {**given, "lacks": list(lacks)})


def had_elsewhere(me: UUID, keys: Collection[HandlerKey], *, using: str) -> set[HandlerKey]:
    """Those of these handlers that another live worker announces, which serves the queue."""
    listed = sorted(keys)
    if not listed:
        return set()
    params = {
        "me": me,
        "queues": [queue for queue, _ in listed],
        "announced": [announced(key) for key in listed],
        "lost": get_settings().WORKER_LOST_SECONDS,
    }
    return {listed[place - 1] for (place,) in rows(using, sql.missing_handlers.HAD_ELSEWHERE, params)}


def lacked_elsewhere(me: UUID, *, using: str) -> set[str]:
    """The handlers that other workers lack, as they are announced."""
    settings = get_settings()
    params = {"me": me, "grace": settings.HANDLER_GRACE_SECONDS, "lost": settings.WORKER_LOST_SECONDS}
    return {name for (name,) in rows(using, sql.missing_handlers.LACKED_ELSEWHERE, params)}


def seconds_waited(jobs: Sequence[Job], *, using: str) -> dict[UUID, float]:
    """For how long each of these jobs, all of one queue, has waited for its handler; 0 at its first meeting."""
    params = {"queue": jobs[0].queue_id, "ids": [job.id for job in jobs]}
    known = dict(rows(using, sql.missing_handlers.WAITED, params))
    return {job.id: known.get(job.id) or 0.0 for job in jobs}


def return_unhandled(jobs: Sequence[Job], text: str, delays: Mapping[UUID, float], *, using: str) -> None:
    """Return claimed jobs of one queue, each after its delay, without using up a retry; their lanes are kept."""
    for some in chunks(list(jobs), MOST_KEYS):
        decision = GiveBackUnhandled({job.id: job for job in some}, text, delays)
        move(using, [job.id for job in some], decision, queue=some[0].queue_id, pauses=PAUSES)


@dataclass(frozen=True, slots=True)
class GiveBackUnhandled:
    """Returns jobs whose handler is missing, if their claims still stand."""

    held: Mapping[UUID, Job]
    text: str
    delays: Mapping[UUID, float]

    def answers(self, using: str, jobs: list[Job]) -> Answers:
        ours = [job for job in jobs if claim_of_job(self.held[job.pk]).fits(job.attempt, job.claim_number)]
        running = [job for job in ours if job.state in RUNNING]
        returned = ReturnToQueue(self.text).answers(using, running)
        return {id: self._waiting(id, change) for id, change in returned.items() if isinstance(change, Change)}

    def _waiting(self, id: UUID, change: Change) -> Change:
        if change.state != JobState.RETRY:
            return change
        return replace(change, delay=self.delays[id], reason=FailureReason.NO_HANDLER, outcome=UNHANDLED)


def release_waiting(queue: str, has: Callable[[str], bool], *, using: str) -> int:
    """Make jobs of this queue fetchable that wait for one of the handlers for which ``has`` is true."""
    leaf = leaves_of(using, [queue])[queue]
    params = {"queue": queue, "grace": get_settings().HANDLER_GRACE_SECONDS}
    found = rows(using, at(leaf, sql.missing_handlers.NAMES_WAITED_FOR), params)
    names = [name for (name,) in found if has(name)]
    if not names:
        return 0
    statement = at(leaf, sql.missing_handlers.RELEASE)
    given = {**params, "names": names, "most": RELEASED_AT_ONCE}
    number, some = 0, RELEASED_AT_ONCE
    while some == RELEASED_AT_ONCE:
        some = in_transaction(using, partial(execute, using, statement, given))
        number += some
    announcements.wake(using, [queue])
    return number
