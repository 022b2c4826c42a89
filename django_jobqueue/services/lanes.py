"""Lanes: whose turn it is among the jobs of one key. Nothing else decides that.

Three rules keep this free of deadlocks and of stranded jobs:

* Locks are taken in one order: the keys (sorted), then rows (by id). A fetch takes rows first, and may, because it
  never waits for anything. A batch takes its rows as they come, and may, because it gives up after a moment.
* A lane is judged by a statement that begins after its key was locked, so that it sees all that was committed before.
* Whatever takes a job out of a lane, or makes it not due, calls :func:`release` in the same transaction, or, where
  that transaction cannot look again or touches too many keys, right after its commit.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ..models import Job, Queue
from ..partitions import leaf_of
from ..policies import LANED, ORDERED
from . import statements
from .transactions import T, after_commit, claimed_rows, execute, is_strict, rows, text_array, unless_locked, wake

logger = logging.getLogger("django_jobqueue")

TRIES = 3
MOST_KEYS = 200  # per transaction: more from many workers would exhaust the server's table of locks


class Lane(NamedTuple):
    queue: str
    policy: str
    key: str


def lanes_of(jobs: Iterable[Job]) -> set[Lane]:
    return {Lane(job.queue_id, job.policy, job.singleton_key) for job in jobs if job.policy in LANED}


class Locked:
    """The lanes that this transaction may judge, and how the others will be released."""

    def __init__(self, using: str, lanes: Collection[Lane], *, wait: bool = True) -> None:
        self.using = using
        self.refused: set[Lane] = set()
        self.later = bool(lanes) and (len(lanes) > MOST_KEYS or is_strict(using))
        if lanes and not self.later:
            if wait:
                self._wait(lanes)
            else:
                self._try(lanes)

    def _wait(self, lanes: Collection[Lane]) -> None:
        params = [[lane.queue for lane in lanes], [lane.key for lane in lanes]]
        execute(self.using, statements.WAIT_FOR_KEYS, params)

    def _try(self, lanes: Collection[Lane]) -> None:
        for (queue, policy), keys in _by_queue(lanes).items():
            ours, _ = try_keys(self.using, queue, keys)
            self.refused.update(Lane(queue, policy, key) for key in keys if key not in ours)

    def release(self, lanes: Collection[Lane]) -> None:
        if lanes and self.later:
            _release_later(self.using, lanes)
        elif lanes:
            release(self.using, lanes)


def _release_later(using: str, lanes: Collection[Lane]) -> None:
    after_commit(using, partial(release_each, using, set(lanes)))


def try_keys(using: str, queue: str, keys: Collection[str]) -> tuple[set[str], int]:
    """Lock those of these keys that nobody else holds; also the oldest transaction still under way."""
    answers = rows(using, statements.TRY_KEYS, [queue, text_array(sorted(keys))])
    return {key for key, ours, _ in answers if ours}, min((xmin for *_, xmin in answers), default=0)


def release(using: str, lanes: Collection[Lane], *, wait: bool = True, leaves: Mapping[str, str] | None = None) -> None:
    """Let the next job of each lane go, where nothing blocks it; the keys must be locked already.

    Without ``wait`` a job that somebody else has locked is let go right after commit, so as not to stall a batch.
    """
    grouped = _by_queue(lanes)
    if leaves is None:
        leaves = leaves_of(using, [queue for queue, _ in grouped])
    later: set[Lane] = set()
    woken: set[str] = set()
    for (queue, policy), keys in grouped.items():
        statement = statements.RELEASE_LANES if policy == ORDERED else statements.RELEASE_RUNNING
        statement = statements.at(leaves[queue], statement).format(skip_locked="" if wait else "SKIP LOCKED")
        params = {"queue": queue, "policy": policy, "keys": text_array(sorted(keys))}
        waiting = claimed_rows(using, statement, params, by_name=policy == ORDERED)
        later.update(Lane(queue, policy, key) for key, is_locked in waiting if is_locked)
        if waiting or policy != ORDERED:  # of those only who is held is looked for, not who was passed over
            woken.add(queue)
    if later:
        _release_later(using, later)
    wake(using, woken)


def release_each(using: str, lanes: Collection[Lane]) -> None:
    """Release lanes in transactions of their own, a bounded number of keys at a time.

    A lane that stays locked too long is left to :func:`.recover.check_lanes`.
    """
    for some in chunks(sorted(lanes), MOST_KEYS):
        if not any(unless_locked(using, partial(_lock_and_release, using, some)) for _ in range(TRIES)):
            logger.warning("lanes are locked; the next check releases them", extra={"lanes": len(some)})


def _lock_and_release(using: str, lanes: Collection[Lane]) -> bool:
    Locked(using, lanes).release(lanes)
    return True


def _held_lanes(using: str, queue: str) -> set[Lane]:
    """Every lane of this queue in which a job is held; a fetch may just be judging another of them."""
    found = (
        Job.objects.using(using)
        .filter(queue=queue, policy__in=sorted(LANED), hold__isnull=False)
        .order_by()
        .values_list("queue_id", "policy", "singleton_key")
        .distinct()
    )
    return {Lane(*row) for row in found}


def release_held(using: str, queue: str) -> None:
    """Let go whoever may, in every lane of this queue."""
    release_each(using, _held_lanes(using, queue))


def leaves_of(using: str, queues: Iterable[str]) -> dict[str, str]:
    """The part of the job table that each queue lies in; the common one for a queue that is gone."""
    found = Queue.objects.using(using).filter(name__in=queues, partition=True).values_list("name", flat=True)
    partitioned = set(found)
    return {queue: leaf_of(queue, queue in partitioned) for queue in queues}


def _by_queue(lanes: Iterable[Lane]) -> dict[tuple[str, str], set[str]]:
    grouped: dict[tuple[str, str], set[str]] = defaultdict(set)
    for lane in lanes:
        grouped[lane.queue, lane.policy].add(lane.key)
    return grouped


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
