"""Claiming jobs: each to one worker, and of a lane one at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import ProgrammingError, connections, transaction
from django.db.models import Exists, Q
from psycopg import errors
from psycopg.sql import Literal

from ..claims import draw_number
from ..encoding import check_tags, check_text
from ..engine import sql
from ..engine.claims import Bookmark, Claimer, Place
from ..engine.databases import database
from ..engine.grouped_reads import check_policy, fetch_grouped
from ..engine.lanes import MOST_KEYS, release_pending_of, try_keys
from ..engine.notifications import fetch_waiting
from ..engine.queues import named, no_queue
from ..engine.recovery import end_leases
from ..engine.refused_keys import refusals_of
from ..engine.transactions import (
    READ_COMMITTED,
    Statement,
    at_once,
    in_transaction,
    joins,
    make_durable,
    rows,
    text_array,
)
from ..exceptions import UnsafeIsolation
from ..expressions import Tid
from ..grouping import Grouping
from ..identifiers import as_uuid
from ..models import Job, Queue
from ..options import YEAR, check_grouping, check_int, check_seconds
from ..partitions import leaf_of
from ..policies import LANED, ORDERED
from ..states import JobState

MOST_JOBS = 10_000
RELEASED_AT_ONCE = 1_000
HELD_AT_ONCE = 5_000
ROUNDS = 5  # how often one fetch looks further when what it saw had to wait
SECOND_LOOKS = 3  # how often it looks again when every key it saw was in somebody's hands


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
    using: str | None = None,
) -> list[Job]:
    """Claim up to ``limit`` fetchable jobs, highest priority and then oldest first, and return them active.

    With ``tags``, only jobs that carry all of them. Of an ordered key at most its head is returned. With ``grouping``
    the jobs of a group (``group_key``) come in the order they were sent, to one reader at a time. A ``lease`` gives
    the jobs back, uncharged, when it runs out. ``wait`` is how long to wait for a job when there is none, looking when
    notified and every ``poll_interval`` (``POLL_SECONDS``). An empty list means that there is nothing to do now, or
    that the queue is paused. Jobs that are not ``whole`` carry only what finishing them needs; the rest loads when it
    is asked for. Raises ``QueueNotFound``, ``InvalidOption``, and ``UnsafeIsolation`` inside a transaction stricter
    than READ COMMITTED.
    """
    limit = check_int(limit, option="limit", minimum=1, maximum=MOST_JOBS)
    claimer = Claimer(
        database(using),
        named(queue),
        check_tags(tags) if tags else [],
        check_text(worker, option="worker", max_length=255),
        None if incarnation is None else as_uuid(incarnation, option="incarnation"),
        None if lease is None else check_seconds(lease, option="lease", minimum=0.001, maximum=YEAR),
        bookmark,
        draw_number(),
        sql.parts.CLAIMED if whole else sql.parts.NEEDED,
    )
    order = None if grouping is None else check_grouping(grouping)
    if wait is None:
        return _fetch_now(claimer, order, limit)
    work = partial(_fetch_now, claimer, order, limit)
    return fetch_waiting(claimer.using, claimer.queue, work, wait, poll_interval)


def _fetch_now(claimer: Claimer, grouping: Grouping | None, limit: int) -> list[Job]:
    known = _known.get((claimer.using, claimer.queue))
    if known is not None and not claimer.tags and grouping is None and not joins(connections[claimer.using]):
        with suppress(_KnownNoMore):
            return _fetch_free(claimer._replace(policy=known.policy, leaf=known.leaf), known, limit)
    found = _look_at_queue(claimer)
    if found is None:
        return []
    make_durable(claimer.using)
    claimer = claimer._replace(policy=found.policy, leaf=found.leaf)
    if grouping is not None and found.policy != ORDERED:  # an ordered queue gives one per key, however it is read
        check_policy(claimer.queue, found.policy)
        return fetch_grouped(claimer, grouping, limit, partial(_release_due, claimer))
    if found.policy in LANED:
        return _fetch_lanes(claimer, limit)
    if claimer.tags:
        return in_transaction(claimer.using, partial(_fetch_tagged, claimer, limit))
    _known[claimer.using, claimer.queue] = found
    with suppress(_KnownNoMore):  # deleted since that look: the next fetch says so
        return _fetch_free(claimer, found, limit)
    return []


class _Known(NamedTuple):
    """What cannot change as long as a queue lives: so it need not be asked for before each fetch, but beside it."""

    policy: str
    partition: bool
    leaf: str


class _KnownNoMore(Exception):
    """The queue is gone, or another one has its name."""


_known: dict[tuple[str, str], _Known] = {}


def _look_at_queue(claimer: Claimer) -> _Known | None:
    """What kind of queue it is; ``None`` while it is paused."""
    found = rows(claimer.using, sql.fetch.LOOK_AT_QUEUE, [claimer.queue])
    if not found:
        raise no_queue(claimer.queue, claimer.using)
    policy, partition, paused, isolation = found[0]
    if joins(connections[claimer.using]) and isolation != READ_COMMITTED:
        raise UnsafeIsolation(isolation)
    return None if paused else _Known(policy, partition, leaf_of(claimer.queue, partition))


def _release_due(claimer: Claimer) -> None:
    """Lift the holds of jobs whose time has come, and give back jobs whose lease ran out."""
    due, leases = claimer.rows(sql.fetch.LOOK_AT_TIMES, [claimer.queue, claimer.queue], by_name=True)[0]
    if due:
        claimer.execute(sql.fetch.RELEASE_DUE, [claimer.queue, RELEASED_AT_ONCE])
    if leases:
        end_leases(claimer.using, claimer.queue)


# ----------------------------------------------------------------------------------- jobs that wait for nobody


def _fetch_free(claimer: Claimer, known: _Known, limit: int) -> list[Job]:
    """By one round trip: look at the queue, lift the holds of what is due, pick and claim."""
    claimed: list[Job] = []
    mark = claimer.bookmark
    if mark is not None and mark.is_fresh():
        claimed = _claim_free(claimer, known, limit, beyond=mark.place)
    if len(claimed) < limit:
        if mark is not None:
            mark.looked()
        claimed += _claim_free(claimer, known, limit - len(claimed))
    return claimed


def _claim_free(claimer: Claimer, known: _Known, limit: int, beyond: Place | None = None) -> list[Job]:
    queue, leaf = claimer.queue, claimer.leaf
    picked, params = _picking(claimer.using, queue, known, beyond is not None)
    params = [_stands_for(param, beyond, limit) for param in params]
    claim = sql.parts.at(leaf, sql.fetch.PICK_AND_CLAIM, claimer.columns).format(candidates=picked)
    given: list[Statement] = [(sql.parts.at(leaf, sql.fetch.LOOK_BESIDE), [queue])]
    if beyond is None:
        given.append((sql.parts.at(leaf, sql.fetch.RELEASE_DUE), [queue, RELEASED_AT_ONCE]))
    given.append((claim, [*params, *claimer.assignment]))
    try:
        look, *_, claimed = at_once(claimer.using, given)
    except ProgrammingError as error:
        if isinstance(error.__cause__, errors.UndefinedTable) and not joins(connections[claimer.using]):
            look = []  # its own part of the table is gone
        else:
            raise
    if not look or look[0][:2] != (known.policy, known.partition):
        _known.pop((claimer.using, queue), None)
        raise _KnownNoMore
    jobs = _in_order(claimer, claimed)
    _, _, paused, leases = look[0]
    if leases and not paused:
        end_leases(claimer.using, queue)
        if len(jobs) < limit:
            jobs += _claim_free(claimer, known, limit - len(jobs), beyond)
    return jobs


_ANY_PRIORITY, _ANY_POSITION, _ANY_LIMIT = (
    2**31 - 9,
    2**63 - 9,
    2**31 - 8,
)  # stand for values in a statement that is kept
_ANY_KEYS = "any keys"  # the same for a list of keys


def _stands_for(param: Any, place: Place | None, limit: int, keys: Collection[str] = ()) -> Any:
    if param == _ANY_LIMIT:
        return limit
    if param == _ANY_KEYS:
        return text_array(keys)
    if place is None:
        return param
    if param == _ANY_PRIORITY:
        return place[0]
    return place[1] if param == _ANY_POSITION else param


@lru_cache(maxsize=512)
def _picking(using: str, queue: str, known: _Known, is_beyond: bool) -> tuple[str, Sequence[Any]]:
    """The ORM's statement that picks and locks candidates; cached, because to compose it costs as much as to run it."""
    kind = Queue.objects.using(using).filter(name=queue, policy=known.policy, partition=known.partition, paused_at=None)

    def pick(look: Look, most: str = "%s") -> tuple[str, tuple[Any, ...]]:
        return _kept(using, known.leaf, _picked(using, queue, look).filter(Exists(kind)).values_list("tid"), most)

    if not is_beyond:
        statement, params = pick(Look())
        return f"picked(tid) AS MATERIALIZED ({statement})", params
    above, params = pick(Look(above=_ANY_PRIORITY))
    within, more = pick(Look(within=_ANY_PRIORITY, after=_ANY_POSITION), "(%s - (SELECT count(*) FROM above))")
    return (
        f"above(tid) AS MATERIALIZED ({above}), within(tid) AS MATERIALIZED ({within}), "
        "picked AS MATERIALIZED (TABLE above UNION ALL TABLE within)",
        params + more,
    )


def _kept(using: str, leaf: str, picked: Any, most: str = "%s") -> tuple[str, tuple[Any, ...]]:
    """A statement for any limit, and for any place in the order."""
    statement, params = _spelled(*_statement(using, leaf, picked[:_ANY_LIMIT]))
    return statement.replace(f"LIMIT {_ANY_LIMIT} ", f"LIMIT {most} "), (*params, _ANY_LIMIT)


def _spelled(statement: str, params: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The same with its constants spelled out: planned for any states, it could not use an index of some states."""
    stand_ins = (_ANY_PRIORITY, _ANY_POSITION, _ANY_KEYS)
    places = ["%s" if param in stand_ins else Literal(param).as_string().replace("%", "%%") for param in params]
    return statement % tuple(places), tuple(param for param in params if param in stand_ins)


def _fetch_tagged(claimer: Claimer, limit: int) -> list[Job]:
    claimed: list[Job] = []
    for look in _looks(claimer):
        tids = [candidate.tid for candidate in _candidates(claimer, look, limit - len(claimed))]
        claimed += _claim(claimer, tids)
        if len(claimed) == limit:
            break
    return claimed


# ------------------------------------------------------------------------------------------------- candidates


class Look(NamedTuple):
    """A part of the order to look along: above a priority, or within one after a position, or all of it."""

    above: int | None = None
    within: int | None = None
    after: int | None = None
    below: int | None = None

    @property
    def place(self) -> Place | None:
        priority = next((bound for bound in (self.above, self.within, self.below) if bound is not None), None)
        return None if priority is None else (priority, self.after or 0)

    def anywhere(self) -> Look:
        """The same part with values that stand for any."""
        priorities = (None if bound is None else _ANY_PRIORITY for bound in (self.above, self.within, self.below))
        above, within, below = priorities
        return Look(above, within, None if self.after is None else _ANY_POSITION, below)


def _looks(claimer: Claimer) -> Iterable[Look]:
    mark = claimer.bookmark
    if mark is not None and mark.is_fresh() and mark.priority is not None:
        yield Look(above=mark.priority)
        yield Look(within=mark.priority, after=mark.position)
    if mark is not None:
        mark.looked()
    _release_due(claimer)
    yield Look()


def _along(look: Look) -> Q:
    where = Q()
    if look.above is not None:
        where &= Q(priority__gt=look.above)
    if look.within is not None:
        where &= Q(priority=look.within, position__gt=look.after)
    if look.below is not None:
        where &= Q(priority__lt=look.below) | Q(priority=look.below, position__gt=look.after)
    return where


def _picked(using: str, queue: str, look: Look) -> Any:  # the stubs do not know annotations
    waiting = Job.objects.using(using).in_queue(queue).filter(_along(look)).fetchable().in_order()
    return waiting.select_for_update(skip_locked=True).annotate(tid=Tid())


def _statement(using: str, leaf: str, picked: Any) -> tuple[str, tuple[Any, ...]]:
    """The same for the queue's own part of the table, which halves the time the planner takes."""
    with transaction.atomic(using=using, savepoint=False):  # which Django asks for; nothing is sent
        statement, params = picked.query.get_compiler(using).as_sql()
    whole = f'FROM "{Job._meta.db_table}"'
    return statement.replace(whole, f'FROM {leaf} "{Job._meta.db_table}"'), tuple(params)


def _candidates(claimer: Claimer, look: Look, limit: int, without: Collection[str] = ()) -> list[Candidate]:
    """Fetchable jobs in order, locked, without these keys; whatever somebody else has locked is passed over."""
    if claimer.tags:
        return _tagged_candidates(claimer, look, limit, without)
    statement, stand_ins = _looking(claimer.using, claimer.queue, claimer.leaf, look.anywhere(), bool(without))
    params = [_stands_for(param, look.place, limit, without) for param in stand_ins]
    return [Candidate(*row) for row in claimer.rows(statement, params, by_name=True)]


@lru_cache(maxsize=512)
def _looking(using: str, queue: str, leaf: str, look: Look, is_without: bool) -> tuple[str, Sequence[Any]]:
    """The ORM's statement that looks for candidates along a part of the order; cached for the same reason."""
    picked = _picked(using, queue, look)
    if is_without:
        picked = picked.exclude(singleton_key__in=[_ANY_KEYS])
    statement, stand_ins = _kept(using, leaf, picked.values_list(*_CANDIDATE))
    return statement.replace("IN (%s)", "= ANY(%s)"), stand_ins


_CANDIDATE = ("tid", "id", "singleton_key", "state", "seq", "priority", "position")


def _tagged_candidates(claimer: Claimer, look: Look, limit: int, without: Collection[str] = ()) -> list[Candidate]:
    queue, tags, keys = claimer.queue, claimer.tags, list(without)
    found: list[tuple[Any, ...]] = []
    if look == Look():
        found = claimer.rows(sql.fetch.TAGGED_IN_FRONT, [queue, max(limit, 100), tags, keys, limit])
    if len(found) < limit:
        seen = [row[1] for row in found]
        params = [tags, queue, seen, keys, *_beyond(look), limit - len(found)]
        found += claimer.rows(sql.fetch.TAGGED, params)
    return [Candidate(*row) for row in found]


def _beyond(look: Look) -> tuple[int, int]:
    """Where to go on, as the greatest (priority, -position) that is meant."""
    return (2**31, 0) if look.below is None else (look.below, -(look.after or 0))


def _claim(claimer: Claimer, tids: Sequence[str], xmin: int | None = None) -> list[Job]:
    if not tids:
        return []
    params = [*claimer.assignment, xmin, text_array(tids)]
    return _in_order(claimer, claimer.rows(sql.fetch.CLAIM, params, by_name=True))


def _in_order(claimer: Claimer, claimed: list[tuple[Any, ...]]) -> list[Job]:
    """Jobs as the statement returned them, put back into the order of the fetch."""
    claimed.sort()  # by falling priority and by position, with which each row begins; no two have the same
    if claimed and claimer.bookmark is not None:
        priority, position, *_ = claimed[-1]
        claimer.bookmark.move(-priority, position)
    return claimer.jobs(claimed)


# ------------------------------------------------------------------------------------------------------ lanes


def _fetch_lanes(claimer: Claimer, limit: int) -> list[Job]:
    """Claim heads of lanes, and look again at once if this look only put others on hold."""
    own = not joins(connections[claimer.using])
    looks, all_keys = SECOND_LOOKS, False
    while True:
        judge = in_transaction(claimer.using, partial(_claim_heads, claimer, limit, all_keys))
        if judge.claimed:
            return judge.claimed
        if judge.long_refused and not all_keys:
            all_keys = True  # nothing else can be fetched, so the keys that were passed over are tried too
            continue
        if not own:
            return []
        if judge.held and not judge.saw_all:
            continue  # what it saw is held now, so the next look begins behind that
        looks -= 1
        if looks and release_pending_of(claimer.queue, claimer.using):
            continue
        if not judge.newly_refused or not looks:
            return []
        time.sleep(random.uniform(0.001, 0.005))


def _claim_heads(claimer: Claimer, limit: int, all_keys: bool) -> _Judge:
    """Look along the order, some candidates at a time, until enough heads are claimed."""
    judge = _Judge(claimer, all_keys)
    for look in _looks(claimer):
        rounds, spare = ROUNDS, 0.25  # most that can be fetched are heads; where not, many may lie in front of one
        while rounds:
            wanted, refused = limit - len(judge.claimed), len(judge.refused)
            most = min(int((1 + spare) * wanted) + 10, 1_000)
            candidates = _candidates(claimer, look, most, judge.refused)
            judge.claim(candidates, wanted)
            judge.saw_all = len(candidates) < most and not judge.is_tired()
            if len(judge.claimed) >= limit or len(candidates) < most or judge.is_tired():
                break
            spare = 2
            rounds -= len(judge.refused) == refused  # keys in somebody's hands must not keep others from being seen
            look = Look(below=candidates[-1].priority, after=candidates[-1].position)
        if len(judge.claimed) >= limit or judge.is_tired():
            break
    return judge


class _Judge:
    """Decides, for one fetch, which candidates go and which are held, and remembers the keys it has locked."""

    def __init__(self, claimer: Claimer, all_keys: bool) -> None:
        self.claimer, self.policy = claimer, claimer.policy
        self.ours: set[str] = set()
        self.refusals = refusals_of(claimer.using, claimer.queue)
        self.long_refused = self.refusals.passed_over()
        self.refused = set() if all_keys else set(self.long_refused)
        self.newly_refused = False  # whether a key was refused that may be free in a moment
        self.claimed: list[Job] = []
        self.held = 0
        self.saw_all = False  # whether it has come to the end of what could be fetched
        self.taken: set[str] = set()  # lanes in which this fetch has claimed a job
        self.xmin = 0

    def is_tired(self) -> bool:
        """Whether it may lock no more keys."""
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
        """The candidates whose key is ours: by now, or from an earlier round."""
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
            if candidate.state != JobState.CREATED:  # it is itself what blocks its lane
                going.append(candidate)
            elif is_blocked or candidate.key in self.taken:
                held.append(candidate)
                blocked.add(candidate.key)
            elif is_overdue:
                # A due job goes before it, as soon as its hold is lifted. Another transaction may have locked that job
                # for long, so the key is passed over like one that another transaction has locked.
                self._refuse([candidate.key])
            elif candidate.seq == head:
                going.append(candidate)
            else:
                held.append(candidate)
        return going, held, blocked

    def _look(self, mine: list[Candidate]) -> dict[str, tuple[bool, int | None, bool]]:
        keys = sorted({candidate.key for candidate in mine})
        params = {"queue": self.claimer.queue, "keys": text_array(keys)}
        found = self.claimer.rows(sql.lanes.LOOK_AT_LANES, params, by_name=True)
        return {key: (blocked, head, overdue) for key, blocked, head, overdue in found}

    def _one_running(self, mine: list[Candidate]) -> tuple[list[Candidate], list[Candidate], set[str]]:
        keys = sorted({candidate.key for candidate in mine} - self.taken)
        params = {"queue": self.claimer.queue, "policy": self.policy, "keys": keys}
        busy = {key for key, running in self.claimer.rows(sql.lanes.LOOK_AT_RUNNING, params) if running}
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
        if held:
            self.claimer.execute(sql.lanes.HOLD_CANDIDATES, [[candidate.tid for candidate in held]])
        if blocked:
            self.claimer.execute(sql.lanes.HOLD_LANES, [self.claimer.queue, sorted(blocked), HELD_AT_ONCE])
