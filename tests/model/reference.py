"""Part C of the specification in plain Python: no Django, no SQL, and no ``hold``.

What goes next is worked out each time from the states, times, keys and numbers of all jobs. Time is counted in units
that the tests choose; ``moment`` counts statements, because two things at one time still have an order. Where the
specification leaves a choice, the model says what must and what may happen, and is then told what did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

CREATED, RETRY, UNKNOWN_RETRY, ACTIVE, CANCELLING = "created", "retry", "unknown_retry", "active", "cancelling"
COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
CANCELLED, STOPPED, UNKNOWN_STOPPED = "cancelled", "stopped", "unknown_stopped"

ELIGIBLE = frozenset({CREATED, RETRY, UNKNOWN_RETRY})
RETRYING = frozenset({RETRY, UNKNOWN_RETRY})
RUNNING = frozenset({ACTIVE, CANCELLING})
DEAD = frozenset({FAILED, EXPIRED})
BLOCKING = RETRYING | RUNNING | DEAD
FINAL = DEAD | {COMPLETED, CANCELLED, STOPPED, UNKNOWN_STOPPED}
OCCUPIED = ELIGIBLE | RUNNING

STANDARD, SHORT, SINGLETON, STATELY = "standard", "short", "singleton", "stately"
EXCLUSIVE, ORDERED = "exclusive", "key_strict_fifo"

ANY: Any = object()  # a text that the specification does not fix
CRASH_LIMIT = 3


class Refused(Exception):
    """The verb must raise one of these errors, and change nothing."""

    def __init__(self, *errors: str) -> None:
        self.errors = errors
        super().__init__(" or ".join(errors))


@dataclass
class Options:
    """What a job inherits from its queue; times in units."""

    retry_limit: int | None = 2
    retry_delay: int = 0
    expire_in: int = 3
    heartbeat: int | None = None
    retention: int = 12
    delete_after: int = 4
    delete_failed_after: int = 6


@dataclass
class Queue:
    name: str
    policy: str
    options: Options = field(default_factory=Options)
    delayed_head: str = "pass"
    on_exhausted: str = "block"
    dead_letter: str | None = None
    paused: bool = False


@dataclass
class Worker:
    name: str
    heartbeat_at: int
    stopped: bool = False


@dataclass
class Job:
    id: UUID | None  # unknown for a copy that the database has just made
    queue: str
    policy: str
    key: str
    options: Options
    created_at: int
    start_after: int
    sent: int  # the moment
    seq: int = 0
    priority: int = 0
    tags: frozenset[str] = frozenset()
    data: Any = None
    state: str = CREATED
    attempt: int = 0
    retry_count: int = 0
    crashes: int = 0
    assignee: str = ""
    incarnation: UUID | None = None
    started_at: int | None = None
    assigned_at: int | None = None
    expire_at: int | None = None
    lease_until: int | None = None
    heartbeat_at: int | None = None
    attempt_finished_at: int | None = None
    last_retry_at: int | None = None
    cancel_requested_at: int | None = None
    finalized_at: int | None = None
    output: Any = None
    error: Any = ""
    reason: Any = ANY
    note: str = ""
    source_id: UUID | None = None
    source_queue: str = ""
    source_key: str = ""
    retried: int | None = None  # the moment of the last charge
    ended: int = 0  # the moment it became final
    charged: int = 0  # the attempt that was charged last

    @property
    def rank(self) -> tuple[int, int, int]:
        """B6: priority, then last retry or else creation, then seq; in an ordered queue priority, then seq."""
        since = 0 if self.policy == ORDERED else self.sent if self.retried is None else self.retried
        return -self.priority, since, self.seq

    @property
    def was_delayed(self) -> bool:
        ended = self.attempt_finished_at
        return self.start_after > max(self.created_at, ended if isinstance(ended, int) else 0)

    def carries(self, tags: Iterable[str]) -> bool:
        return self.tags >= set(tags)


def slot_at_send(policy: str, key: str) -> frozenset[str]:
    """The states in which another job of the key stands in the way of a new one."""
    if policy in (SHORT, STATELY):
        return frozenset({CREATED})
    if policy == EXCLUSIVE or (policy == STANDARD and key):
        return OCCUPIED
    return frozenset()


def slot_at_retry(policy: str, key: str) -> frozenset[str]:
    """The states in which another job of the key prevents the retry of a failed job (B31)."""
    if policy == STATELY:
        return RETRYING
    return OCCUPIED if policy == EXCLUSIVE or (policy == STANDARD and key) else frozenset()


class Rules:
    """What is there, whose turn it is, and what failing does."""

    worker_lost_after = 1
    stop_grace = 1
    cancel_grace = 2

    def __init__(self) -> None:
        self.now = 0
        self.moment = 0
        self.last_seq = 0
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[UUID, Job] = {}
        self.workers: dict[UUID, Worker] = {}
        self.gone: list[UUID] = [UUID(int=0)]  # ids that no job has, or none has any more
        self.copies: list[Job] = []  # made by the last step; the database knows their ids

    # ------------------------------------------------------------------------------------------ who is there

    def some(self, which: Callable[[Job], bool]) -> list[Job]:
        return sorted((job for job in self.jobs.values() if which(job)), key=lambda job: job.seq)

    def lane(self, queue: str, key: str) -> list[Job]:
        return self.some(lambda job: job.queue == queue and job.key == key)

    def beside(self, job: Job, states: Iterable[str]) -> list[Job]:
        """The others of its key that are in one of these states."""
        return [other for other in self.lane(job.queue, job.key) if other is not job and other.state in states]

    def is_due(self, job: Job) -> bool:
        return job.start_after <= self.now

    def is_alive(self, incarnation: UUID | None) -> bool:
        worker = None if incarnation is None else self.workers.get(incarnation)
        return worker is not None and not worker.stopped and worker.heartbeat_at > self.now - self.worker_lost_after

    def place(self, job: Job) -> Job:
        """Give a job its number."""
        self.last_seq += 1
        job.seq = self.last_seq
        if job.id is not None:
            self.jobs[job.id] = job
        return job

    def adopt(self, ids: list[tuple[UUID, UUID]]) -> None:
        """The ids (and sources) of the copies just made, in the order of their numbers in the database."""
        waiting = {copy.source_id: copy for copy in self.copies}
        assert len(waiting) == len(self.copies) == len(ids)
        sent = 0
        for id, source in ids:
            copy = waiting.pop(source)
            assert copy.sent >= sent, "copies out of order"
            copy.id, sent = id, copy.sent
            self.place(copy)
        self.copies = []

    # ----------------------------------------------------------------------------------------- whose turn it is

    def turns(self, queue: str, tags: Iterable[str] = ()) -> tuple[list[Job], list[Job]]:
        """The jobs that a fetch must return if its limit allows, and those that it may return besides."""
        found = self.queues[queue]
        if found.paused:
            return [], []
        keys = {job.key for job in self.jobs.values() if job.queue == queue}
        if found.policy == ORDERED:
            heads = [self.head(queue, key) for key in keys]
            return [head for head in heads if head and head.carries(tags)], []
        if found.policy in (SINGLETON, STATELY):
            return self._one_running(queue, keys, tags)
        ready = self.some(lambda job: job.queue == queue and job.state in ELIGIBLE and self.is_due(job))
        return [job for job in ready if job.carries(tags)], []

    def head(self, queue: str, key: str) -> Job | None:
        """The only job of an ordered key that may start now: what blocks the key, else the first by seq (B18, B24)."""
        lane = self.lane(queue, key)
        blocking = [job for job in lane if job.state in BLOCKING]
        if blocking:
            return next((job for job in blocking if job.state in RETRYING and self.is_due(job)), None)
        waiting = [job for job in lane if job.state == CREATED]
        if self.queues[queue].delayed_head == "pass":
            waiting = [job for job in waiting if self.is_due(job)]
        return waiting[0] if waiting and self.is_due(waiting[0]) else None

    def _one_running(self, queue: str, keys: Iterable[str], tags: Iterable[str]) -> tuple[list[Job], list[Job]]:
        """Per key the best that waits, while none runs; a worker whose tags it lacks may be given another."""
        must, may = [], []
        for key in keys:
            lane = self.lane(queue, key)
            ready = sorted((j for j in lane if j.state in ELIGIBLE and self.is_due(j)), key=lambda job: job.rank)
            if not ready or any(job.state in RUNNING for job in lane):
                continue
            if ready[0].carries(tags):
                must.append(ready[0])
            else:
                may += [job for job in ready if job.carries(tags)]
        return must, may

    def check_fetch(self, queue: str, tags: Iterable[str], limit: int, ids: list[UUID]) -> None:
        """Is this what a fetch may return?"""
        must, may = self.turns(queue, tags)
        allowed = {job.id for job in must + may}
        assert set(ids) <= allowed, f"{set(ids) - allowed} must not start; only {[job.id for job in must]}"
        got = [self.jobs[id] for id in ids]
        assert len(got) <= limit
        assert got == sorted(got, key=lambda job: job.rank), "not in order"
        if self.queues[queue].policy in (ORDERED, SINGLETON, STATELY):
            assert len({job.key for job in got}) == len(got), "two of one key"
        for job in must:
            full = len(got) == limit and all(other.rank < job.rank for other in got)
            assert job in got or full, f"{job.id} was skipped"

    def claim(self, job: Job, worker: str, incarnation: UUID | None, lease: int | None = None) -> None:
        job.state = ACTIVE
        job.attempt += 1
        job.assignee, job.incarnation, job.assigned_at = worker, incarnation, self.now
        job.started_at = self.now if job.started_at is None else job.started_at
        job.expire_at = self.now + job.options.expire_in
        job.lease_until = None if lease is None else self.now + lease
        job.heartbeat_at = None if job.options.heartbeat is None else self.now

    # ---------------------------------------------------------------------------------------- how attempts end

    def become(self, job: Job, state: str) -> None:
        job.state = state
        job.finalized_at = self.now if state in FINAL else None
        job.ended = self.moment

    def fail_attempt(
        self,
        job: Job,
        error: Any,
        *,
        waits_as: str = RETRY,
        dies_as: str = FAILED,
        crashed: bool = False,
        for_good: bool = False,
        delay: int | None = None,
    ) -> None:
        """Another attempt, or none. An attempt is charged once, however often it is reported."""
        paid = job.charged == job.attempt
        limit = job.options.retry_limit
        job.error, job.reason, job.attempt_finished_at = error, ANY, self.now
        job.crashes = job.crashes + 1 if crashed else 0
        if crashed and job.crashes >= CRASH_LIMIT:
            self.die(job, FAILED, "crash_loop")
        elif for_good or (limit is not None and job.retry_count >= limit and not paid):
            self.die(job, dies_as)
        elif job.policy == STATELY and self.beside(job, RETRYING):
            self.die(job, FAILED)
        else:
            if not paid:
                job.retry_count += 1
                job.last_retry_at, job.retried, job.charged = self.now, self.moment, job.attempt
            job.start_after = self.now + (job.options.retry_delay if delay is None else delay)
            self.become(job, waits_as)

    def give_up_claim(self, job: Job, state: str, error: Any, delay: int = 0) -> None:
        """Back without a charge; a stately job whose place is taken cannot, and fails."""
        job.error, job.reason, job.attempt_finished_at = error, ANY, self.now
        if job.policy == STATELY and self.beside(job, RETRYING):
            self.die(job, FAILED)
            return
        job.start_after = self.now + delay
        self.become(job, state)

    def die(self, job: Job, state: str, reason: Any = ANY) -> None:
        """Attempts used up: a copy for the dead-letter queue, and an ordered key stays blocked unless told not to."""
        queue = self.queues[job.queue]
        self.become(job, state)
        job.reason = reason
        if job.policy == ORDERED and queue.on_exhausted == "skip":
            self.become(job, STOPPED)
            job.reason = "exhausted"
        if queue.dead_letter is not None:
            self._copy(job, self.queues[queue.dead_letter])

    def _copy(self, job: Job, target: Queue) -> None:
        copy = Job(
            id=None,
            queue=target.name,
            policy=target.policy,
            key=(job.key or job.queue) if target.policy == ORDERED else "",
            options=Options(**vars(job.options)),
            created_at=self.now,
            start_after=self.now,
            sent=self.moment,
            priority=job.priority,
            tags=job.tags,
            data=job.data,
            source_id=job.id,
            source_queue=job.queue,
            source_key=job.key,
        )
        self.copies.append(copy)
