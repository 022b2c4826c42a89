"""The verbs of the reference: each checks first, raises :class:`Refused` or moves what it means, and says what it did.

An ``attempt`` beside an id is a claim: what a fetched job carries. Without one the verb speaks of the job as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from .reference import (
    ACTIVE,
    ANY,
    BLOCKING,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    CREATED,
    DEAD,
    ELIGIBLE,
    EXPIRED,
    FINAL,
    ORDERED,
    RETRY,
    RETRYING,
    RUNNING,
    SINGLETON,
    STATELY,
    STOPPED,
    UNKNOWN_RETRY,
    UNKNOWN_STOPPED,
    Job,
    Options,
    Refused,
    Rules,
    slot_at_retry,
    slot_at_send,
)


@dataclass
class Sending:
    """What the tests give to a send; times in units."""

    id: UUID | None = None
    key: str = ""
    priority: int = 0
    delay: int = 0
    tags: frozenset[str] = frozenset()
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)


class Model(Rules):
    # ------------------------------------------------------------------------------------------------- sending

    def in_the_way(self, queue: str, item: Sending) -> list[Job]:
        slot = slot_at_send(self.queues[queue].policy, item.key)
        return [job for job in self.lane(queue, item.key) if job.state in slot]

    def check_send(self, queue: str, item: Sending, *, refuse: bool) -> bool:
        """Whether there is room for it; an id that exists is an error, if duplicates are."""
        if self.queues[queue].policy == ORDERED and not item.key:
            raise Refused("KeyRequired")
        if item.id is not None and item.id in self.jobs:
            if refuse:
                raise Refused("DuplicateJob")
            return False
        return not self.in_the_way(queue, item)

    def store(self, queue: str, id: UUID, item: Sending) -> Job:
        found = self.queues[queue]
        return self.place(
            Job(
                id=id,
                queue=queue,
                policy=found.policy,
                key=item.key,
                options=Options(**(vars(found.options) | item.options)),
                created_at=self.now,
                start_after=self.now + item.delay,
                sent=self.moment,
                priority=item.priority,
                tags=item.tags,
                data=item.data,
            )
        )

    # ------------------------------------------------------------------------------- finishing: by claim or by id

    def holder(self, id: UUID, attempt: int | None, *allowed: str) -> Job:
        """The job of this id; a claim is lost to another one, or when the job returned to the queue (B27)."""
        job = self.jobs.get(id)
        if job is None:
            raise Refused("JobNotFound")
        if attempt not in (None, job.attempt):
            raise Refused("ClaimLost")
        if job.state not in allowed:
            raise Refused("ClaimLost" if attempt is not None and job.state in ELIGIBLE else "InvalidTransition")
        return job

    def complete(self, id: UUID, attempt: int | None, output: Any) -> None:
        job = self.holder(id, attempt, ACTIVE, CANCELLING, UNKNOWN_RETRY, UNKNOWN_STOPPED)
        job.output, job.crashes, job.error, job.reason = output, 0, ANY, ANY
        self.become(job, COMPLETED)

    def fail(self, id: UUID, attempt: int | None, error: str, for_good: bool = False, delay: int | None = None) -> Job:
        job = self.holder(id, attempt, ACTIVE, UNKNOWN_RETRY)
        self.fail_attempt(job, error, for_good=for_good, delay=delay)
        return job

    def stop(self, id: UUID, attempt: int | None, message: str, count_retry: bool = False) -> None:
        job = self.holder(id, attempt, *({CANCELLING} if count_retry else {ACTIVE, CANCELLING, UNKNOWN_RETRY}))
        if count_retry:
            job.retry_count += 1
            job.last_retry_at = self.now
            if job.options.retry_limit is not None:  # B37
                job.options.retry_limit = max(job.options.retry_limit, job.retry_count)
        self._end(job, STOPPED, message)

    def mark_unknown_stopped(self, id: UUID, attempt: int | None, message: str) -> None:
        self._end(self.holder(id, attempt, ACTIVE, CANCELLING, UNKNOWN_RETRY), UNKNOWN_STOPPED, message)

    def acknowledge(self, id: UUID, attempt: int | None, was_executing: bool) -> None:
        self._end(self.holder(id, attempt, CANCELLING), STOPPED if was_executing else UNKNOWN_STOPPED, "")

    def give_back(self, id: UUID, attempt: int | None, message: str, delay: int) -> None:
        self.give_up_claim(self.holder(id, attempt, ACTIVE), RETRY, message, delay)

    def set_visibility(self, id: UUID, attempt: int | None, units: int) -> None:
        job = self.holder(id, attempt, ACTIVE)
        if job.policy == ORDERED and attempt is None:
            raise Refused("InvalidOption")  # B33
        if units:
            job.lease_until = self.now + units
        else:
            self.give_up_claim(job, RETRY, ANY)

    def touch(self, id: UUID, attempt: int) -> str:
        job = self.jobs.get(id)
        if job is None or job.attempt != attempt or job.state not in RUNNING:
            raise Refused("ClaimLost")
        job.heartbeat_at = self.now
        return job.state

    def _end(self, job: Job, state: str, message: Any) -> None:
        job.error, job.reason = message or job.error, ANY
        job.attempt_finished_at = ANY  # the attempt of an unknown retry had ended before
        job.crashes = ANY
        self.become(job, state)

    def check_hand_over(self, keys: dict[tuple[str, str], bool], tags: Iterable[str], ids: list[UUID]) -> list[Job]:
        """Check what was claimed by finishing these keys; a key that was blocked and had no delayed job must be."""
        got = [self.jobs[id] for id in ids]
        for job in got:
            assert (job.queue, job.key) in keys
            assert self.head(job.queue, job.key) is job, f"{job.id} is not the head of its key"
            assert job.carries(tags)
            assert not self.queues[job.queue].paused
            rivals = [other for other in self.turns(job.queue)[0] if other.priority > job.priority]
            # One that was delayed becomes fetchable with the next fetch, and one of these keys with this very step.
            assert all(other.was_delayed or (other.queue, other.key) in keys for other in rivals), "a rival waits"
        for queue, key in (place for place, blocked in keys.items() if blocked):
            head = self.head(queue, key)
            if head is None or head in got or not head.carries(tags) or self.queues[queue].paused:
                continue
            waiting = self.some(lambda job, queue=queue: job.queue == queue and job.state in ELIGIBLE)  # type: ignore[misc]
            urgent = any(job.priority > head.priority for job in waiting)
            delayed = any(job.was_delayed for job in waiting if job.key == key)
            assert urgent or delayed, f"{head.id} was not handed over"
        return got

    # ------------------------------------------------------------------------------------------------ operators

    def chosen(self, ids: Iterable[UUID], tags: Iterable[str]) -> list[Job]:
        wanted, tagged = set(ids), set(tags)
        if not wanted and not tagged:
            raise Refused("InvalidOption")  # B38
        return self.some(lambda job: job.id in wanted or (bool(tagged) and job.carries(tagged)))

    def cancel(self, ids: list[UUID], tags: Iterable[str], force: bool) -> tuple[set[UUID], set[UUID]]:
        reached = set()
        chosen = self.chosen(ids, tags)
        for job in chosen:
            if job.state in FINAL:
                continue
            assert job.id is not None
            reached.add(job.id)
            if job.state == CREATED:
                self.become(job, CANCELLED)
            elif job.state in RETRYING or force:
                job.attempt_finished_at = ANY
                self.become(job, STOPPED)
            elif job.state == ACTIVE:
                job.cancel_requested_at, job.lease_until = self.now, None
                self.become(job, CANCELLING)
            job.reason = ANY
        return reached, (set(ids) | {job.id for job in chosen if job.id}) - reached

    def check_retry(self, ids: list[UUID]) -> tuple[list[Job], list[list[Job]]]:
        """Jobs that must be retried, and groups of which exactly one is, because they share a slot (B31)."""
        must: list[Job] = []
        one_of: dict[tuple[str, str], list[Job]] = {}
        for job in (self.jobs[id] for id in ids if id in self.jobs):
            slot = slot_at_retry(job.policy, job.key)
            if job.state in DEAD and not self.beside(job, slot):
                if slot:
                    one_of.setdefault((job.queue, job.key), []).append(job)
                else:
                    must.append(job)
        return must, list(one_of.values())

    def retry(self, job: Job, data: Any) -> None:
        if job.options.retry_limit is not None:
            job.options.retry_limit += 1
        job.start_after, job.crashes, job.reason = self.now, 0, ANY
        job.data = job.data if data is None else data
        self.become(job, RETRY)

    def skip(self, ids: list[UUID], reason: str) -> list[Job]:
        moved = [self.jobs[id] for id in ids if id in self.jobs and self.jobs[id].state in DEAD | RETRYING]
        for job in moved:
            job.note, job.reason = reason, ANY
            self.become(job, STOPPED)
        return moved

    def delete(self, ids: list[UUID], tags: Iterable[str]) -> int:
        chosen = self.chosen(ids, tags)
        errors = ["JobNotFound"] if set(ids) - set(self.jobs) else []
        errors += ["InvalidTransition"] if any(job.state not in FINAL for job in chosen) else []
        if errors:
            raise Refused(*errors)
        return self.remove(chosen)

    def purge(self, queue: str, state: str | None) -> int:
        return self.remove(self.some(lambda job: job.queue == queue and state in (None, job.state)))

    def remove(self, jobs: Iterable[Job]) -> int:
        gone = [job.id for job in jobs if job.id]
        for id in gone:
            del self.jobs[id]
        self.gone += gone
        return len(gone)

    def reschedule(self, id: UUID, at: int) -> None:
        self.holder(id, None, *ELIGIBLE).start_after = at

    # ----------------------------------------------------------------------------------- what happens by itself

    def expire(self) -> Counter[str]:
        def is_overdue(job: Job) -> bool:
            if job.state != ACTIVE or job.expire_at is None:
                return False
            return job.expire_at + (self.stop_grace if self.is_alive(job.incarnation) else 0) <= self.now

        def is_silent(job: Job) -> bool:
            asked = job.cancel_requested_at
            return job.state == CANCELLING and asked is not None and asked + self.cancel_grace <= self.now

        overdue, silent = self.some(is_overdue), self.some(is_silent)
        for job in overdue:
            self.fail_attempt(job, ANY, dies_as=EXPIRED)
        for job in silent:
            self._end(job, UNKNOWN_STOPPED, ANY)
        return counted(overdue)

    def recover_lost(self, seen_dead: Iterable[UUID]) -> Counter[str]:
        silent = {id for id, worker in self.workers.items() if not worker.stopped and not self.is_alive(id)}
        dead = silent | set(seen_dead)
        lost = self.some(lambda job: job.state in RUNNING and job.incarnation in dead)
        for job in lost:
            self._lose(job)
        for id in dead & set(self.workers):
            self.workers[id].stopped = True
        self.moment += 1
        quiet = self.some(self._is_quiet)
        for job in quiet:
            self._lose(job)
        return counted(lost + quiet)

    def _is_quiet(self, job: Job) -> bool:
        beat, last = job.options.heartbeat, job.heartbeat_at
        return job.state == ACTIVE and beat is not None and last is not None and last + beat <= self.now

    def _lose(self, job: Job) -> None:
        if job.state == CANCELLING:
            self._end(job, UNKNOWN_STOPPED, ANY)
        else:
            self.fail_attempt(job, ANY, waits_as=UNKNOWN_RETRY, crashed=True)

    def take_back(self, which: Callable[[Job], bool]) -> Counter[str]:
        """Without a charge: of a worker that does not respond, or all that run."""
        running = self.some(lambda job: job.state in RUNNING and which(job))
        for job in running:
            if job.state == CANCELLING:
                self._end(job, UNKNOWN_STOPPED, ANY)
            else:
                self.give_up_claim(job, UNKNOWN_RETRY, ANY)
        return counted(running)

    def end_leases(self, queue: str) -> None:
        """What a fetch does first (B33)."""
        if not self.queues[queue].paused:
            for job in self.some(lambda job: job.queue == queue and job.state == ACTIVE):
                if job.lease_until is not None and job.lease_until <= self.now:
                    self.give_up_claim(job, RETRY, ANY)

    def cleaning(self, ttl: int | None) -> tuple[list[Job], list[Job]]:
        """What a cleanup must delete, and what it may; a lane is emptied from its head."""
        if ttl is not None:
            return self.some(lambda job: job.state == COMPLETED and self._ended(job) + ttl <= self.now), []
        old = self.some(lambda job: self._is_old(job) or self._waited_too_long(job))
        may = [job for job in old if job.state in ELIGIBLE and not self._goes_next(job)]
        return [job for job in old if job not in may], may

    def _ended(self, job: Job) -> int:
        assert job.finalized_at is not None
        return job.finalized_at

    def _is_old(self, job: Job) -> bool:
        if job.state not in FINAL or (job.policy == ORDERED and job.state in BLOCKING):
            return False
        keep = job.options.delete_failed_after if job.state in DEAD else job.options.delete_after
        return keep > 0 and self._ended(job) + keep <= self.now

    def _waited_too_long(self, job: Job) -> bool:
        if job.state not in ELIGIBLE or max(job.created_at, job.start_after) + job.options.retention > self.now:
            return False
        # What blocks an ordered key, or waits behind what does, waits until a person decides (B14, B36).
        return job.policy != ORDERED or (job.state == CREATED and not self.beside(job, BLOCKING))

    def _goes_next(self, job: Job) -> bool:
        if job.policy == ORDERED:
            return self.head(job.queue, job.key) is job
        if job.policy not in (SINGLETON, STATELY):
            return True
        rivals = [other for other in self.beside(job, ELIGIBLE) if self.is_due(other) and other.rank < job.rank]
        return not rivals and not self.beside(job, RUNNING)


def counted(jobs: Iterable[Job]) -> Counter[str]:
    return Counter(job.queue for job in jobs)
