"""Redriving dead letters: a letter ends in the transaction that retries its original or sends its job again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from uuid import UUID, uuid5

from ..models import Job, Queue
from ..policies import ORDERED
from ..states import ELIGIBLE, REDRIVABLE, RETRIABLE, JobState
from . import announcements, sql
from .databases import rows
from .lanes import Locked
from .policy_slots import slots_taken
from .snapshots import CHANGED, Seen
from .transactions import in_transaction
from .transitions import Change, apply, delete_rows, despite_collisions, lock

NO_LETTER = "it is no dead letter: it is no copy of a job of another queue"
# The original has been retried since: it waits, runs or has completed, so nothing is left to do for its dead letters.
DONE_AGAIN = ELIGIBLE | {JobState.ACTIVE, JobState.COMPLETED}


@dataclass(slots=True)
class Redriven:
    """What became of dead letters: each that moved with the job that does its work."""

    retried: dict[UUID, UUID] = field(default_factory=dict)  # with the original, which was retried in its place
    sent: dict[UUID, UUID] = field(default_factory=dict)  # with the new job
    removed: dict[UUID, UUID] = field(default_factory=dict)  # with the job that waits, runs or has completed already
    refused: dict[UUID, str] = field(default_factory=dict)  # left, with the reason


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and where it comes from, which never changes: it is read before the rows are locked."""

    id: UUID
    queue: str
    is_copy: bool  # of a job of another queue
    source_id: UUID
    source_queue: str
    key: str

    @classmethod
    def of(cls, job: Job) -> Letter:
        if job.is_copy and job.source_id:
            return cls(job.pk, job.queue_id, True, job.source_id, job.source_queue, job.source_key)
        return cls(job.pk, job.queue_id, False, job.pk, job.queue_id, job.singleton_key)

    @property
    def new_id(self) -> UUID:
        """The id of the job that is sent for it: the same for all letters of one original, so it is sent only once."""
        return uuid5(self.source_id, "redrive")


def redrive_some(using: str, ids: Collection[UUID], *, to: str | None = None, seen: Seen | None = None) -> Redriven:
    """Redrive these dead letters, a bounded number, in the order they were sent; refuse those that cannot move."""

    def work() -> Redriven:
        columns = ("id", "queue_id", "singleton_key", "source_id", "source_queue", "source_key")
        read = Job.objects.using(using).filter(pk__in=ids).order_by("seq").only(*columns)
        letters = [Letter.of(job) for job in read]
        locked, jobs = lock(using, {*ids, *(letter.source_id for letter in letters)})
        batch = _Batch(using, letters, {job.pk: job for job in jobs}, to, seen)
        done = Redriven(refused=dict.fromkeys(set(ids) - {letter.id for letter in letters}, "there is no such job"))
        retrying, sending = batch.sort(done)
        batch.retry(retrying, done, locked)
        batch.send(sending, done)
        delete_rows(using, [batch.jobs[id] for id in (*done.retried, *done.sent, *done.removed)], locked)
        return done

    return despite_collisions(partial(in_transaction, using, work), using)


_Sorted = dict[UUID, list[Letter]]  # the letters of each job that will run, by its id


class _Batch:
    """Dead letters in the order they were sent. Their rows are locked, and so are those of their originals."""

    def __init__(
        self, using: str, letters: list[Letter], jobs: Mapping[UUID, Job], to: str | None, seen: Seen | None
    ) -> None:
        self.using, self.letters, self.jobs, self.to = using, letters, jobs, to
        self.ids = {letter.id for letter in letters}
        self.later = seen.changed(self.ids, using) if seen else set()
        queues = Queue.objects.using(using)
        self.queues = queues.in_bulk({to} if to else {letter.source_queue for letter in letters})
        self.dead_letter_queues = set(queues.exclude(dead_letter=None).values_list("dead_letter_id", flat=True))
        sent = Job.objects.using(using).filter(pk__in=[letter.new_id for letter in letters])
        self.sent_before = dict(sent.values_list("pk", "state"))

    def sort(self, done: Redriven) -> tuple[_Sorted, _Sorted]:
        """The letters whose originals are to be retried, and those to be sent again, by the job that will run."""
        retrying: _Sorted = defaultdict(list)
        sending: _Sorted = defaultdict(list)
        for letter in self.letters:
            original = self._original(letter)
            state = None if original is None else original.state
            if why := self._refusal(letter, original):
                done.refused[letter.id] = why
            elif state in DONE_AGAIN:
                done.removed[letter.id] = letter.source_id
            elif letter.new_id in self.sent_before:
                done.removed[letter.id] = letter.new_id
            elif state in RETRIABLE and self._target(letter) == letter.source_queue:
                retrying[letter.source_id].append(letter)
            else:
                sending[letter.new_id].append(letter)
        return retrying, sending

    def retry(self, retrying: _Sorted, done: Redriven, locked: Locked) -> None:
        """Retry the originals in their places, as an operator's retry does."""
        originals = sorted((self.jobs[id] for id in retrying), key=attrgetter("seq"))
        taken = slots_taken(self.using, originals)
        for id, other in taken.items():
            self._refuse(retrying[id], f"the place of its original is taken by job {other}", done)
        moving = [job for job in originals if job.pk not in taken]
        change = Change(JobState.RETRY, delay=0, more_retries=1, crashes=0)
        apply(self.using, moving, dict.fromkeys((job.pk for job in moving), change), locked)
        for job in moving:
            self._note(retrying[job.pk], job.pk, done.retried, done)

    def send(self, sending: _Sorted, done: Redriven) -> None:
        """Send new jobs to the ends of their keys; of several letters of one original, the latest is sent."""
        if not sending:
            return
        chosen = [letters[-1] for letters in sending.values()]
        params = {
            "letters": [letter.id for letter in chosen],
            "ids": [letter.new_id for letter in chosen],
            "queues": [self._target(letter) for letter in chosen],
            "keys": [letter.key for letter in chosen],
            "source_ids": [letter.source_id for letter in chosen],
            "source_queues": [letter.source_queue for letter in chosen],
        }
        stored: dict[str, list[UUID]] = defaultdict(list)
        for id, queue in rows(self.using, sql.transitions.REDRIVE, params):
            stored[queue].append(id)
            self._note(sending.pop(id), id, done.sent, done)
        for queue, ids in stored.items():
            announcements.sent(self.using, queue, ids)
        for letters in sending.values():
            self._refuse(letters, f"its place in the queue {self._target(letters[-1])!r} is taken by another job", done)

    def _note(self, letters: list[Letter], job: UUID, moved: dict[UUID, UUID], done: Redriven) -> None:
        """The last of these letters moved the job; the others are older copies of it."""
        *older, last = [letter.id for letter in letters]
        moved[last] = job
        done.removed |= dict.fromkeys(older, job)

    def _refuse(self, letters: list[Letter], why: str, done: Redriven) -> None:
        done.refused |= {letter.id: why for letter in letters}

    def _target(self, letter: Letter) -> str:
        return self.to or letter.source_queue

    def _original(self, letter: Letter) -> Job | None:
        job = self.jobs.get(letter.source_id) if letter.is_copy else None
        return job if job is not None and job.queue_id == letter.source_queue else None

    def _refusal(self, letter: Letter, original: Job | None) -> str | None:
        return self._why_not_itself(letter) or self._why_no_target(letter) or self._why_not_again(letter, original)

    def _why_not_itself(self, letter: Letter) -> str | None:
        job = self.jobs.get(letter.id)
        if job is None:
            return "there is no such job"
        if job.state not in REDRIVABLE:
            return f"it is {job.state}"
        if letter.id in self.later:
            return CHANGED
        if letter.is_copy:
            return None
        if letter.queue not in self.dead_letter_queues:
            return NO_LETTER
        return None if self.to else "it is no copy of another job: redrive it to a queue that you name"

    def _why_no_target(self, letter: Letter) -> str | None:
        target = self.queues.get(self._target(letter))
        if target is None:
            return f"its queue {letter.source_queue!r} does not exist any more: redrive it to another queue"
        if target.is_ordered and not letter.key:
            return f"the queue {target.name!r} needs a key, and it has none"
        return None

    def _why_not_again(self, letter: Letter, original: Job | None) -> str | None:
        """Why the work of this letter cannot be done again now."""
        again = self.sent_before.get(letter.new_id)
        is_dead = original is not None and original.state in RETRIABLE
        if again is not None and (is_dead or again not in DONE_AGAIN | RETRIABLE):
            return f"it was sent again before, as job {letter.new_id}, which is {again}"
        if original is None:
            return None
        if original.pk in self.ids:
            return f"its original {original.pk} is a dead letter itself, and was selected too"
        if original.state == JobState.CANCELLING:
            return f"its original {original.pk} is being cancelled"
        if self._target(letter) == letter.source_queue:
            return None
        if original.state in DONE_AGAIN:
            return f"its original {original.pk} is {original.state}"
        if is_dead and original.policy == ORDERED:
            key, queue = original.singleton_key, original.queue_id
            return f"its original still blocks the key {key!r} of {queue!r}: skip that first, or redrive to {queue!r}"
        return None
