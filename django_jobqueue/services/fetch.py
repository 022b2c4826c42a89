"""Claiming jobs: each job for one worker, and in a lane one job at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import ProgrammingError, connections
from django.db.models import Q, Value
from django.db.models.functions import Concat
from psycopg import errors

from ..claims import draw_number
from ..engine import sql
from ..engine.claims import Bookmark, Claimer, Place
from ..engine.databases import Statement, claimed_rows, database, execute, rows, text_array
from ..engine.grouped_reads import check_policy, fetch_grouped
from ..engine.lanes import MOST_KEYS, release_pending_of, try_keys
from ..engine.notifications import fetch_waiting
from ..engine.queues import KnownQueue, QueueChanged, known_queues, named, no_queue
from ..engine.recovery import end_leases
from ..engine.refused_keys import refusals_of
from ..engine.transactions import READ_COMMITTED, at_once, in_transaction, make_durable
from ..exceptions import UnsafeIsolation
from ..expressions import Tid
from ..grouping import Grouping
from ..identifiers import as_uuid
from ..models import Job
from ..options import YEAR, check_grouping, check_int, check_seconds
from ..partitions import leaf_of
from ..policies import LANED, ORDERED
from ..querysets import JobQuerySet
from ..states import JobState
from ..text import check_tags, check_text

MOST_JOBS = 10_000
RELEASED_AT_ONCE = 1_000
HELD_AT_ONCE = 5_000
ROUNDS = 5  # how often one fetch looks further along the queue if it could not claim the jobs it saw
SECOND_LOOKS = 3  # how often it looks again if every key it saw was locked by another transaction


class Candidate(NamedTuple):
    tid: str
    id: UUID
    key: str
    state: str
    seq: int
    priority: int
    position: int


def fetch(
    queue: str,
    limit: int = 1,
    *,
    tags: Iterable[str] = (),
    worker: str = "",
    incarnation: UUID | None = None,
    grouping: Grouping | str | None = None,
    lease: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    poll_interval: float | timedelta | None = None,
    bookmark: Bookmark | None = None,
    whole: bool = True,
    skip_names: Iterable[str] = (),
    using: str | None = None,
) -> list[Job]:
    """Claim up to ``limit`` fetchable jobs and return them: the highest priority first, then the oldest.

    The returned jobs are active. The list is empty if the queue has no fetchable jobs or is paused. On an ordered
    queue it contains at most one job of each key, the head of its lane.

    With ``tags``, only jobs that carry all of these tags are claimed. With ``grouping``, the jobs of a group
    (``group_key``) are returned in the order they were sent, and only one reader at a time gets jobs of a group. With
    ``lease``, jobs that are not finished in this time return to the queue without using up a retry. With ``wait``, the
    call waits up to this long for a job: it looks again when it is notified, and every ``poll_interval`` (default:
    ``POLL_SECONDS``). A ``bookmark`` makes repeated fetches from a busy queue faster. With ``whole=False`` the jobs
    carry only the columns that are needed to finish them; other columns are loaded when they are read. Jobs whose
    handler is in ``skip_names`` are left to other workers; on an ordered queue, and in a group, so are those behind
    them.

    Raises ``QueueNotFound``, ``InvalidOption``, and ``UnsafeIsolation`` inside a transaction that is stricter than
    READ COMMITTED.
    """
    limit = check_int(limit, option="limit", minimum=1, maximum=MOST_JOBS)
    using, queue = database(using), named(queue)
    tagged = check_tags(tags) if tags else []
    assignment = {
        "worker": check_text(worker, option="worker", max_length=255),
        "incarnation": None if incarnation is None else as_uuid(incarnation, option="incarnation"),
        "lease": None if lease is None else check_seconds(lease, option="lease", minimum=0.001, maximum=YEAR),
        "number": draw_number(),
    }
    columns = sql.parts.CLAIMED if whole else sql.parts.NEEDED
    claimer = Claimer(using, queue, tagged, assignment, bookmark, columns, skip_names=list(skip_names))
    order = None if grouping is None else check_grouping(grouping)
    if wait is None:
        return _fetch_now(claimer, order, limit)
    work = partial(_fetch_now, claimer, order, limit)
    return fetch_waiting(claimer.using, claimer.queue, work, wait, poll_interval)


def _fetch_now(claimer: Claimer, grouping: Grouping | None, limit: int) -> list[Job]:
    known = known_queues.get(claimer.using, claimer.queue)
    own = connections[claimer.using].get_autocommit()  # else the statements become part of the caller's transaction
    if known is not None and not claimer.tags and grouping is None and own:
        with suppress(QueueChanged):
            return _fetch_free(claimer._replace(policy=known.policy, leaf=known.leaf), known, limit)
    current = _look_at_queue(claimer, own)
    if current is None:
        return []
    if not own:
        make_durable(claimer.using)
    claimer = claimer._replace(policy=current.policy, leaf=current.leaf)
    if grouping is not None and current.policy != ORDERED:  # an ordered queue returns one job per key in any case
        check_policy(claimer.queue, current.policy)
        return fetch_grouped(claimer, grouping, limit, partial(_release_due, claimer))
    if current.policy in LANED:
        return _fetch_lanes(claimer, limit, own)
    if claimer.tags:
        return in_transaction(claimer.using, partial(_fetch_tagged, claimer, limit))
    known_queues.remember(claimer.using, claimer.queue, current)
    with suppress(QueueChanged):  # the queue was deleted after it was read: the next fetch raises QueueNotFound
        return _fetch_free(claimer, current, limit)
    return []


def _look_at_queue(claimer: Claimer, own: bool) -> KnownQueue | None:
    """The policy and partition of the queue; ``None`` while it is paused."""
    queue_rows = rows(claimer.using, sql.fetch.LOOK_AT_QUEUE, {"queue": claimer.queue})
    if not queue_rows:
        raise no_queue(claimer.queue, claimer.using)
    policy, partition, paused, isolation = queue_rows[0]
    if not own and isolation != READ_COMMITTED:
        raise UnsafeIsolation(isolation)
    return None if paused else KnownQueue(policy, partition, leaf_of(claimer.queue, partition))


def _release_due(claimer: Claimer) -> None:
    """Lift the holds of jobs that are due, and return jobs whose lease has ended to the queue."""
    using, queue, leaf = claimer.using, claimer.queue, claimer.leaf
    look = sql.parts.at(leaf, sql.fetch.LOOK_AT_TIMES)
    due, leases = claimed_rows(using, look, {"queue": queue}, by_name=True)[0]
    if due:
        execute(using, sql.parts.at(leaf, sql.fetch.RELEASE_DUE), {"queue": queue, "most": RELEASED_AT_ONCE})
    if leases:
        end_leases(using, queue)


# ------------------------------------------------------------------------------------------ jobs without lanes


def _fetch_free(claimer: Claimer, known: KnownQueue, limit: int) -> list[Job]:
    """Read the queue, lift the holds of due jobs, and claim, all in one round trip."""
    claimed: list[Job] = []
    mark = claimer.bookmark
    if mark is not None and mark.is_fresh():
        claimed = _claim_free(claimer, known, limit, beyond=mark.place)
    if len(claimed) < limit:
        if mark is not None:
            mark.looked()
        claimed += _claim_free(claimer, known, limit - len(claimed))
    return claimed


def _claim_free(claimer: Claimer, known: KnownQueue, limit: int, beyond: Place | None = None) -> list[Job]:
    queue, leaf = claimer.queue, claimer.leaf
    params = {"queue": queue, "policy": known.policy, "partition": known.partition, "limit": limit}
    params["skip_names"] = text_array(claimer.skip_names)
    statements: list[Statement] = [(sql.parts.at(leaf, sql.fetch.LOOK_BESIDE), params)]
    if beyond is None:
        due = {"queue": queue, "most": RELEASED_AT_ONCE}
        statements.append((sql.parts.at(leaf, sql.fetch.RELEASE_DUE), due))
        claim = sql.fetch.CLAIM_FRONT
    else:
        params["priority"], params["position"] = beyond
        claim = sql.fetch.CLAIM_BEYOND
    statements.append((sql.parts.at(leaf, claim, claimer.columns), params | claimer.assignment))
    try:
        look, *_, claimed = at_once(claimer.using, statements)
    except ProgrammingError as error:
        if isinstance(error.__cause__, errors.UndefinedTable) and connections[claimer.using].get_autocommit():
            look = []  # the queue's own partition has been dropped
        else:
            raise
    if not look or look[0][:2] != (known.policy, known.partition):
        known_queues.drop(claimer.using, queue)
        raise QueueChanged
    jobs = _in_order(claimer, claimed)
    _, _, paused, leases = look[0]
    if leases and not paused:
        end_leases(claimer.using, queue)
        if len(jobs) < limit:
            jobs += _claim_free(claimer, known, limit - len(jobs), beyond)
    return jobs


def _fetch_tagged(claimer: Claimer, limit: int) -> list[Job]:
    claimed: list[Job] = []
    for stretch in _stretches(claimer):
        tids = [candidate.tid for candidate in _candidates(claimer, stretch, limit - len(claimed))]
        claimed += _claim(claimer, tids)
        if len(claimed) == limit:
            break
    return claimed


# ------------------------------------------------------------------------------------------------- candidates


class Part(Enum):
    """A part of the queue's order, relative to a place; each has a statement and a filter for a queryset."""

    ALL = sql.fetch.HEADS
    ABOVE = sql.fetch.HEADS_ABOVE  # jobs of a higher priority
    WITHIN = sql.fetch.HEADS_WITHIN  # jobs behind the place, of its own priority
    BELOW = sql.fetch.HEADS_BELOW  # all jobs behind the place

    def bounds(self, place: Place) -> Q:
        priority, position = place
        behind = Q(priority=priority, position__gt=position)
        return {
            Part.ALL: Q(),
            Part.ABOVE: Q(priority__gt=priority),
            Part.WITHIN: behind,
            Part.BELOW: Q(priority__lt=priority) | behind,
        }[self]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of the order to read, and the place it is relative to."""

    part: Part = Part.ALL
    place: Place = (0, 0)


def _stretches(claimer: Claimer) -> Iterable[Stretch]:
    mark = claimer.bookmark
    if mark is not None and mark.is_fresh():
        yield Stretch(Part.ABOVE, mark.place)
        yield Stretch(Part.WITHIN, mark.place)
    if mark is not None:
        mark.looked()
    _release_due(claimer)
    yield Stretch()


def _candidates(claimer: Claimer, stretch: Stretch, limit: int, without: Collection[str] = ()) -> list[Candidate]:
    """Lock and return fetchable jobs in order, without these keys; rows locked by another transaction are skipped."""
    if claimer.tags:
        return _tagged_candidates(claimer, stretch, limit, without)
    priority, position = stretch.place
    params = {"queue": claimer.queue, "priority": priority, "position": position, "limit": limit}
    params["without"], params["skip_names"] = text_array(sorted(without)), text_array(claimer.skip_names)
    heads = sql.parts.at(claimer.leaf, stretch.part.value)
    return [Candidate(*row) for row in claimed_rows(claimer.using, heads, params, by_name=True)]


def _tagged_candidates(claimer: Claimer, stretch: Stretch, limit: int, without: Collection[str]) -> list[Candidate]:
    """Read a bounded number of jobs in order, then use the index of tags, because each alone can be slow.

    Reading in order is slow if many jobs with other tags lie in front, the index if many jobs have these tags.
    """
    jobs = Job.objects.using(claimer.using).in_queue(claimer.queue).in_part(claimer.leaf)
    waiting = jobs.filter(stretch.part.bounds(stretch.place)).fetchable().in_order()
    if without:
        waiting = waiting.exclude(singleton_key__in=sorted(without))
    if claimer.skip_names:
        waiting = waiting.exclude(name__in=claimer.skip_names)
    tagged = waiting.tagged(claimer.tags)
    candidates = []
    if stretch.part is Part.ALL:
        candidates = _locked(tagged.located_by(waiting[: max(limit, 100)]), limit)
    if len(candidates) < limit:
        rest = tagged.exclude(pk__in=[candidate.id for candidate in candidates])
        # An expression instead of the column, because with the column the planner would read the queue in order again.
        queue = Concat("queue_id", Value(""))
        by_tags = Job.objects.in_part(claimer.leaf).alias(place=queue).filter(place=claimer.queue)
        by_tags = by_tags.fetchable().tagged(claimer.tags).order_by()
        candidates += _locked(rest.located_by(by_tags), limit - len(candidates))
    return candidates


_CANDIDATE = ("id", "singleton_key", "state", "seq", "priority", "position")


def _locked(waiting: JobQuerySet, limit: int) -> list[Candidate]:
    rows = waiting.select_for_update(skip_locked=True).values_list(Tid(), *_CANDIDATE)
    return [Candidate(*row) for row in rows[:limit]]


def _claim(claimer: Claimer, tids: Sequence[str], xmin: int | None = None) -> list[Job]:
    if not tids:
        return []
    params = {**claimer.assignment, "xmin": xmin, "tids": text_array(tids)}
    statement = sql.parts.at(claimer.leaf, sql.fetch.CLAIM, claimer.columns)
    return _in_order(claimer, claimed_rows(claimer.using, statement, params, by_name=True))


def _in_order(claimer: Claimer, claimed: list[tuple[Any, ...]]) -> list[Job]:
    """The claimed jobs in the order of the fetch; the statement returns them in any order."""
    claimed.sort()  # each row begins with the negative priority and the position; no two rows have the same
    if claimed and claimer.bookmark is not None:
        priority, position, *_ = claimed[-1]
        claimer.bookmark.move(-priority, position)
    return claimer.jobs(claimed)


# ------------------------------------------------------------------------------------------------------ lanes


def _fetch_lanes(claimer: Claimer, limit: int, own: bool) -> list[Job]:
    """Claim heads of lanes, and look again at once if the first look only put candidates on hold."""
    looks, all_keys = SECOND_LOOKS, False
    while True:
        judge = in_transaction(claimer.using, partial(_claim_heads, claimer, limit, all_keys))
        if judge.claimed:
            return judge.claimed
        if judge.long_refused and not all_keys:
            all_keys = True  # no other job can be fetched, so the skipped keys are tried too
            continue
        if not own:
            return []
        if judge.held and not judge.saw_all:
            continue  # the candidates it saw are on hold now, so the next look begins behind them
        looks -= 1
        if looks and release_pending_of(claimer.queue, claimer.using):
            continue
        if not judge.newly_refused or not looks:
            return []
        time.sleep(random.uniform(0.001, 0.005))


def _claim_heads(claimer: Claimer, limit: int, all_keys: bool) -> _Judge:
    """Look along the order, some candidates at a time, until enough heads are claimed."""
    judge = _Judge(claimer, all_keys)
    for stretch in _stretches(claimer):
        rounds, spare = ROUNDS, 0.25  # most fetchable jobs are heads; otherwise many may lie in front of a head
        while rounds:
            wanted, refused = limit - len(judge.claimed), len(judge.refused)
            most = min(int((1 + spare) * wanted) + 10, 1_000)
            candidates = _candidates(claimer, stretch, most, judge.refused)
            judge.claim(candidates, wanted)
            judge.saw_all = len(candidates) < most and not judge.is_full()
            if len(judge.claimed) >= limit or len(candidates) < most or judge.is_full():
                break
            spare = 2
            rounds -= len(judge.refused) == refused  # locked keys use up no round, so that the other keys are seen
            stretch = Stretch(Part.BELOW, (candidates[-1].priority, candidates[-1].position))
        if len(judge.claimed) >= limit or judge.is_full():
            break
    return judge


class _Judge:
    """Decides, for one fetch, which candidates are claimed and which are put on hold; knows the keys it has locked."""

    def __init__(self, claimer: Claimer, all_keys: bool) -> None:
        self.claimer, self.policy = claimer, claimer.policy
        self.ours: set[str] = set()
        self.refusals = refusals_of(claimer.using, claimer.queue)
        self.long_refused = self.refusals.passed_over()
        self.refused = set() if all_keys else set(self.long_refused)
        self.newly_refused = False  # whether a refused key may be free in a moment
        self.claimed: list[Job] = []
        self.held = 0
        self.saw_all = False  # whether it has seen all fetchable jobs
        self.taken: set[str] = set()  # lanes in which this fetch has claimed a job
        self.xmin = 0

    def is_full(self) -> bool:
        """Whether this transaction has locked as many keys as it may."""
        return len(self.ours) >= MOST_KEYS

    def claim(self, candidates: list[Candidate], wanted: int) -> None:
        mine = self._lock(candidates)
        if not mine:
            return
        going, held, blocked = (self._ordered if self.policy == ORDERED else self._one_running)(mine)
        self.refusals.forget(candidate.key for candidate in mine if candidate.key not in self.refused)
        going = going[:wanted]
        self.claimed += _claim(self.claimer, [candidate.tid for candidate in going], self.xmin or None)
        self.taken.update(candidate.key for candidate in going)
        self._hold(held, blocked)

    def _lock(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates whose key this transaction has locked, now or in an earlier round."""
        keys = dict.fromkeys(c.key for c in candidates if c.key not in self.ours and c.key not in self.refused)
        asked = list(keys)[: MOST_KEYS - len(self.ours)]
        if asked:
            got, xmin = try_keys(self.claimer.using, self.claimer.queue, asked)
            self.xmin = self.xmin or xmin
            self.ours |= got
            self._refuse([key for key in asked if key not in got])
        return [candidate for candidate in candidates if candidate.key in self.ours]

    def _refuse(self, keys: Collection[str]) -> None:
        if keys:
            self.refusals.note(keys)
            self.refused.update(keys)
            self.newly_refused = self.newly_refused or not self.long_refused.issuperset(keys)

    def _ordered(self, mine: list[Candidate]) -> tuple[list[Candidate], list[Candidate], set[str]]:
        lanes = self._look(mine)
        going, held, blocked = [], [], set()
        for candidate in mine:
            is_blocked, head, is_overdue = lanes[candidate.key]
            if candidate.state != JobState.CREATED:  # it waits for a retry, so it blocks the lane itself
                going.append(candidate)
            elif is_blocked or candidate.key in self.taken:
                held.append(candidate)
                blocked.add(candidate.key)
            elif is_overdue:
                # A due job goes first as soon as its hold is lifted. Another transaction may have locked that job
                # for long, so the key is skipped like a locked key.
                self._refuse([candidate.key])
            elif candidate.seq == head:
                going.append(candidate)
            else:
                held.append(candidate)
        return going, held, blocked

    def _look(self, mine: list[Candidate]) -> dict[str, tuple[bool, int | None, bool]]:
        keys = sorted({candidate.key for candidate in mine})
        params = {"queue": self.claimer.queue, "keys": text_array(keys)}
        look = sql.parts.at(self.claimer.leaf, sql.lanes.LOOK_AT_LANES)
        found = claimed_rows(self.claimer.using, look, params, by_name=True)
        return {key: (blocked, head, overdue) for key, blocked, head, overdue in found}

    def _one_running(self, mine: list[Candidate]) -> tuple[list[Candidate], list[Candidate], set[str]]:
        keys = sorted({candidate.key for candidate in mine} - self.taken)
        params = {"queue": self.claimer.queue, "policy": self.policy, "keys": keys}
        look = sql.parts.at(self.claimer.leaf, sql.lanes.LOOK_AT_RUNNING)
        busy = {key for key, running in claimed_rows(self.claimer.using, look, params) if running}
        going: dict[str, Candidate] = {}
        held = []
        for candidate in mine:
            if candidate.key in busy or candidate.key in self.taken or candidate.key in going:
                held.append(candidate)
            else:
                going[candidate.key] = candidate
        return list(going.values()), held, set()

    def _hold(self, held: list[Candidate], blocked: Collection[str]) -> None:
        self.held += len(held)
        using, leaf = self.claimer.using, self.claimer.leaf
        if held:
            tids = [candidate.tid for candidate in held]
            execute(using, sql.parts.at(leaf, sql.lanes.HOLD_CANDIDATES), {"tids": tids})
        if blocked:
            params = {"queue": self.claimer.queue, "keys": sorted(blocked), "most": HELD_AT_ONCE}
            execute(using, sql.parts.at(leaf, sql.lanes.HOLD_LANES), params)
