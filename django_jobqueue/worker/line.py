"""The jobs a child has claimed and not begun, and when it looks for more."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import handlers, services
from ..exceptions import QueueNotFound
from ..handlers import Handler
from ..models import Job, Queue
from ..policies import LANED, QueuePolicy
from ..services.workers import give_back_unheld
from ..states import FailureReason
from .endings import Failed, Result
from .event_loop import Item

if TYPE_CHECKING:
    from .child import Child

logger = logging.getLogger("django_jobqueue.worker")

LONGEST_SECONDS = 1.0  # without looking at anything
REFRESH_SECONDS = 10.0  # how often the list of queues is read again
STALE_SECONDS = 1.0  # claimed work that nobody began for that long goes back
EMPTY_SECONDS = 0.005  # an empty queue is not looked at again sooner, however often somebody wakes us

CHUNK_SECONDS = 0.001
MOST_IN_CHUNK = 50


class Line:
    """The jobs a child has claimed and not begun, and what it knows of its queues."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.suspects: deque[Item] = deque()  # jobs that would be given up after one more crash: they run alone
        self.alone: UUID | None = None  # the one of them that runs
        self.is_drained = False
        self._queues: deque[str] = deque()  # in the order of their turns
        self._look_at: dict[str, float] = {}  # when to look at each
        self._empty_at: dict[str, float] = {}  # when nothing was found
        self._woken: set[str] = set()  # those somebody woke us for; filled by the listener's thread
        self._asynchronous: set[str] = set()  # those whose handlers all are
        self._by_group: set[str] = set()  # those that are read by group
        self._bookmarks: dict[str, services.Bookmark] = {}
        self._refreshed_at = float("-inf")
        self._handlers: dict[tuple[str, str], Handler[..., Any]] = {}
        self._waits_since: tuple[int, float] | None = None  # how many had begun then, and when that was
        self._seconds: float | None = None  # what a plain handler took lately

    def woken(self, queue: str) -> None:
        """Somebody says that there is something to fetch, in any queue if it is not named."""
        if not queue or queue in self._look_at:
            self._woken.add(queue)
            self.child.wake.set()

    def patience(self) -> float:
        """For how long there is nothing to look at."""
        now = time.monotonic()
        open_ones = [at for queue, at in self._look_at.items() if self._room(queue) > 0]
        return max(0.0, min([*open_ones, now + LONGEST_SECONDS]) - now)

    def learn(self, job: Job, seconds: float) -> None:
        if job.id in self.child.asynchronous or not seconds:
            return
        known = self._seconds
        self._seconds = seconds if known is None else known + (seconds - known) * 0.05

    def is_starving(self) -> bool:
        """Whether handlers have nothing more to begin."""
        return self.child.executor.ready.empty()

    def is_careful(self) -> bool:
        """Whether a suspect runs or waits to run, so that nothing else may begin."""
        if self.alone is not None and self.alone not in self.child.held:
            self.alone = None
        return self.alone is not None or bool(self.suspects)

    # ------------------------------------------------------------------------------------------------- fetching

    def _room(self, queue: str) -> int:
        """How many more jobs to claim: what can begin now, and what will begin within the prefetch time."""
        child, settings = self.child, self.child.settings
        if self.is_careful():
            return 0
        most = child.recorder.room_for_jobs() if child.options.max_jobs else settings.BATCH_SIZE
        if queue in self._asynchronous:
            return min(most, settings.BATCH_SIZE, settings.ASYNC_CONCURRENCY - len(child.asynchronous))
        unrecorded = child.recorder.unrecorded()
        unended = max(0, len(child.held) - len(child.asynchronous) - unrecorded)
        running = max(min(unended, child.options.concurrency), child.executor.busy())  # also with claims that were lost
        waiting = max(0, unended - running)
        ahead = 0
        if self._seconds is not None:
            ahead = int(child.options.concurrency * settings.PREFETCH_SECONDS / max(self._seconds, 1e-6))
        wanted = min(settings.BATCH_SIZE, max(0, child.options.concurrency - running) + ahead)
        return 0 if waiting > wanted // 2 or unrecorded >= settings.BATCH_SIZE else min(most, wanted - waiting)

    def fill(self, now: float) -> bool:
        """Claim from the queues that may have something; whether anything came."""
        if self.is_careful():
            return self._run_suspect()
        if now - self._refreshed_at > REFRESH_SECONDS:
            self._refresh(now)
        came, looked = False, 0
        for queue in list(self._queues):
            if self._room(queue) < 1:
                continue
            self._hear()
            self._queues.remove(queue)  # its turn comes again after the others'
            self._queues.append(queue)
            looked += 1
            if self._look_at[queue] <= now:
                room = self._room(queue)
                jobs = self._fetch(queue, room)
                self._plan_next_look(queue, jobs, room, now)
                if queue in self._by_group:
                    self._take_groups(jobs)
                else:
                    self.take(jobs)
                came = came or bool(jobs)
        self.is_drained = looked == len(self._queues) and not came and not self._woken
        return came

    def is_empty(self, now: float) -> bool:
        """Whether a look at every queue finds nothing: what has just failed may wait for its next attempt already."""
        self._look_at = dict.fromkeys(self._look_at, 0.0)
        return not self.fill(now)

    def _plan_next_look(self, queue: str, jobs: list[Job], asked: int, now: float) -> None:
        """At once while it gives all that was asked for; of lanes it may give less, and have more."""
        if len(jobs) >= asked:
            self._bookmarks.setdefault(queue, services.Bookmark())
        else:
            self._bookmarks.pop(queue, None)  # it helps only who is busy, and costs a look
        if jobs and (len(jobs) >= asked or jobs[0].policy in LANED or queue in self._by_group):
            self._look_at[queue] = 0.0
            return
        self._look_at[queue] = now + self.child.settings.POLL_SECONDS * random.uniform(0.9, 1.1)
        if not jobs:
            self._empty_at[queue] = now

    def _hear(self) -> None:
        """What the listener heard: those queues are looked at now."""
        while self._woken:
            queue = self._woken.pop()
            for name in [queue] if queue else list(self._look_at):
                if name in self._look_at:
                    self._look_at[name] = self._empty_at.get(name, 0.0) + EMPTY_SECONDS

    def _fetch(self, queue: str, room: int) -> list[Job]:
        child = self.child
        try:
            return services.fetch(
                queue,
                min(room, child.settings.BATCH_SIZE),
                tags=child.options.tags,
                grouping=child.options.grouping if queue in self._by_group else None,
                worker=child.name,
                incarnation=child.incarnation,
                bookmark=self._bookmarks.get(queue),
                using=child.using,
            )
        except QueueNotFound:
            logger.warning("a queue is gone", extra={"worker": child.name, "queue": queue})
            self._refreshed_at = float("-inf")
            return []

    def _refresh(self, now: float) -> None:
        """The queues there are: those asked for, or all that have a handler."""
        child = self.child
        policies = dict(Queue.objects.using(child.using).order_by("name").values_list("name", "policy"))
        there = list(policies)
        if child.options.grouping:
            self._by_group = {name for name, policy in policies.items() if policy == QueuePolicy.STANDARD}
        known = handlers.all_handlers()
        asked = set(child.options.queues) or handlers.served(known)
        wanted = [name for name in there if name in asked]
        self._look_at = {name: self._look_at.get(name, 0.0) for name in wanted}
        if set(self._queues) != set(wanted):
            self._queues = deque(wanted)
        plain = handlers.served(handler for handler in known if not handler.is_async)
        self._asynchronous = handlers.served(known) - plain if child.handler is None else set()
        self._refreshed_at = now

    # ------------------------------------------------------------------------------------------------ beginning

    def take(self, jobs: Iterable[Job]) -> None:
        """Give claimed jobs to the executor."""
        child = self.child
        now = time.monotonic()
        asynchronous: list[Item] = []
        plain: list[Item] = []
        held, known = child.held, self._handlers
        suspicious = max(1, child.settings.CRASH_LIMIT - 1)
        for job in jobs:
            handler = known.get((job.queue_id, job.name))
            if handler is None:
                handler = self._find(job)
                if handler is None:
                    continue
            held[job.id] = job
            job.deadline = now + job.expire_in_seconds
            if job.crashes >= suspicious:
                self.suspects.append((job, handler))
            elif handler.is_async:
                asynchronous.append((job, handler))
            else:
                plain.append((job, handler))
        child.executor.begin(plain, self._chunk())
        child.recorder.count()
        if asynchronous:
            child.asynchronous.update(job.id for job, _ in asynchronous)
            child.executor.start_async(asynchronous)

    def _take_groups(self, jobs: list[Job]) -> None:
        """Give each group to the executor as one; what cannot run with the others of its group goes back."""
        child, now = self.child, time.monotonic()
        groups: dict[str, list[Item]] = {}
        cut: set[str] = set()
        suspicious = max(1, child.settings.CRASH_LIMIT - 1)
        for job in jobs:
            group = groups.setdefault(job.group_key, [])
            if job.group_key in cut:
                continue
            handler = self._handlers.get((job.queue_id, job.name)) or self._find(job)
            alone = job.crashes >= suspicious
            if handler is None or (group and (alone or handler.is_async != group[0][1].is_async)):
                cut.add(job.group_key)
                continue
            child.held[job.id] = job
            job.deadline = now + job.expire_in_seconds
            if alone:
                self.suspects.append((job, handler))
                cut.add(job.group_key)
            else:
                group.append((job, handler))
        for group in filter(None, groups.values()):
            if group[0][1].is_async:
                child.asynchronous.update(job.id for job, _ in group)
            child.executor.begin_group(group)
        child.recorder.count()
        if cut:
            self._give_back("it must not run with the others of its group")

    def ended(self, batch: Iterable[Result]) -> None:
        """The next of a group may go when one has ended."""
        for queue in self._by_group and {job.queue_id for job, _, _ in batch} & self._by_group:
            self.woken(queue)

    def _chunk(self) -> int:
        """How many jobs a thread takes at once: a millisecond's work, because taking one costs time too."""
        if not self._seconds:
            return 1
        return max(1, min(MOST_IN_CHUNK, int(CHUNK_SECONDS / self._seconds)))

    def _find(self, job: Job) -> Handler[..., Any] | None:
        handler = self.child.handler or handlers.find(job.queue_id, job.name)
        if handler is not None:
            self._handlers[job.queue_id, job.name] = handler
            return handler
        child = self.child
        text = handlers.missing_text(job.queue_id, job.name)
        logger.error("no handler", extra={"worker": child.name, "job": str(job.id), "queue": job.queue_id})
        child.held[job.id] = job
        child.executor.results.append((job, Failed(text, for_good=True, reason=FailureReason.NO_HANDLER), 0.0))
        return None

    def _run_suspect(self) -> bool:
        """Before it would be given up for its crashes, a job runs alone: then it is known whether they were its own.

        Not after the first crash, because then a machine that went down would have all its jobs run one by one.
        """
        child = self.child
        if self.alone is not None or len(child.held) > len(self.suspects):
            return False
        job, handler = self.suspects.popleft()
        self.alone = job.id
        job.deadline = time.monotonic() + job.expire_in_seconds
        if handler.is_async:
            child.executor.start_async([(job, handler)])
        else:
            child.executor.begin([(job, handler)], 1)
        return True

    # --------------------------------------------------------------------------------------------- giving back

    def take_back(self) -> list[Item]:
        """What is claimed and not begun, no longer to be begun."""
        items = list(self.suspects)
        self.suspects.clear()
        return items + self.child.executor.take_back()

    def return_stale(self, now: float) -> None:
        """Claimed work that has to wait, because its predecessors take longer than those before them, goes back."""
        child = self.child
        child.executor.spread(now)
        if self._by_group and (behind := child.executor.behind_slow(now, STALE_SECONDS)):
            self._return(behind)
        if child.executor.ready.empty():
            self._waits_since = None
            return
        began = child.executor.began
        if self._waits_since is None or began != self._waits_since[0]:
            self._waits_since = (began, now)  # something was begun meanwhile
        if now - self._waits_since[1] < STALE_SECONDS:
            return
        self._seconds = max(self._seconds or 0.0, STALE_SECONDS)
        self._return(self.take_back())

    def _return(self, items: Iterable[Item]) -> None:
        for job, _ in items:
            self.child.held.pop(job.id, None)
        self._give_back("its worker was too busy to begin")

    def _give_back(self, why: str) -> None:
        child = self.child
        give_back_unheld(child.name, child.incarnation, child.held, why, using=child.using)
