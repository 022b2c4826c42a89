"""Sending dead letters back to the queues they came from, as an operation that a crash does not lose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from uuid import UUID

from ..engine.databases import database, named
from ..engine.queues import check_exists
from ..exceptions import InvalidOption
from ..models import Job, Queue
from ..options import LARGEST, check_int
from ..selection import Selection
from .operations import begin_operation, bits, counts_of, current_snapshot, shown_jobs
from .operator import Outcome


@dataclass(slots=True)
class Redriven(Outcome):
    """The dead letters that :func:`redrive` moved, and those that it left, with the reason.

    Of the moved ones, ``retried`` is the number whose originals were retried in their places, ``sent`` the number that
    became new jobs, and ``removed`` the number whose jobs already wait, run or have completed again. ``became`` has the
    id of that job for each.
    """

    retried: int = 0
    sent: int = 0
    removed: int = 0
    became: dict[UUID, UUID] = field(default_factory=dict)


def redrive(
    dead_letter_queue: str,
    *,
    to: str | None = None,
    source_queue: str | None = None,
    limit: int | None = None,
    operator: str = "",
    reason: str = "",
    using: str | None = None,
) -> Redriven:
    """Send dead letters back to the queues they came from, the oldest first, and return what became of them.

    If the original job is still there and failed for good, it is retried in its place, like :func:`retry` does. If it
    was skipped, cancelled, deleted or archived, a new job with everything that the letter has goes to the end of its
    key; its ``source_id`` is the id of the original. If the original already waits, runs or has completed again, there
    is nothing to do. In each case the letter is removed in the same transaction.

    It takes letters that wait and letters that failed for good. It leaves those that it cannot move, and returns the
    reasons: a worker runs the letter, the queue it came from does not exist any more, its place there is taken, or it
    is no copy of a job of another queue. With ``to`` all go to that queue as new jobs, also jobs that are no copies;
    a letter whose original still blocks a key is left. ``source_queue`` takes only letters of that queue, ``limit``
    only so many.

    The letters are moved in batches, and the call is recorded as an ``Operation``: if the process dies, a worker
    continues it. Raises ``QueueNotFound``, and ``InvalidOption`` for a queue that keeps no dead letters.
    """
    using = database(using)
    selection = dead_letters(dead_letter_queue, to=to, source_queue=source_queue, limit=limit, using=using)
    if not shown_jobs("redrive", selection, using).exists():
        return Redriven()
    operation = begin_operation("redrive", selection=selection, to=to, operator=operator, reason=reason, using=using)
    moved: list[UUID] = []
    refused: dict[UUID, str] = {}
    became: dict[UUID, UUID] = {}
    for bit in bits(operation, using=using):
        operation = bit.operation
        moved += bit.moved
        refused |= bit.refused
        became |= bit.became
    return Redriven(moved, refused, **counts_of(operation), became=became)


def dead_letters(
    dead_letter_queue: str,
    *,
    to: str | None = None,
    source_queue: str | None = None,
    limit: int | None = None,
    snapshot: str | None = None,
    using: str,
) -> Selection:
    """The letters that :func:`redrive` with these options would take. Raises what it raises.

    With a ``snapshot``, see :func:`current_snapshot`, those that it would have taken then.
    """
    queue = check_exists(dead_letter_queue, using).name
    if to is not None and check_exists(to, using).name == queue:
        raise InvalidOption("to", f"{queue!r} is the queue that the dead letters are in")
    if source_queue is not None:
        source_queue = named(source_queue)
        if not Job.objects.using(using).in_queue(queue).filter(source_queue=source_queue).exists():
            check_exists(source_queue, using)  # a queue that was deleted may still have letters
    if limit is not None:
        limit = check_int(limit, option="limit", minimum=1, maximum=LARGEST)
    check_keeps_dead_letters(queue, using)
    shown = current_snapshot(using=using) if snapshot is None else snapshot
    selection = Selection(queue=queue, source_queue=source_queue, snapshot=shown)
    if limit is None:
        return selection
    numbers = list(shown_jobs("redrive", selection, using).order_by("seq").values_list("seq", flat=True)[:limit])
    return replace(selection, until_seq=numbers[-1] if numbers else 0)


def check_keeps_dead_letters(queue: str, using: str) -> None:
    """Raises ``InvalidOption`` for another queue; one that no queue names as dead letter any more may have copies."""
    keeping = set(Queue.objects.using(using).exclude(dead_letter=None).values_list("dead_letter_id", flat=True))
    if queue in keeping or Job.objects.using(using).in_queue(queue).copied().exists():
        return
    known = (
        f"The dead-letter queues are {', '.join(sorted(keeping))}." if keeping else "No queue has a dead-letter queue."
    )
    raise InvalidOption(
        "dead_letter_queue",
        f"{queue!r} keeps no dead letters: no queue names it as its dead_letter, and it has no copies of other jobs",
        hint=known,
    )


def oldest_letters(queue: str, number: int, using: str) -> list[Job]:
    """About the oldest dead letters that a redrive takes, along the indexes of waiting and of failed jobs."""
    letters = Job.objects.using(using).in_queue(queue).defer("data", "output", "attempts")
    found = [*letters.fetchable().in_order()[:number], *letters.dead().order_by("finalized_at")[:number]]
    return sorted(found, key=attrgetter("seq"))[:number]
