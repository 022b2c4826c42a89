"""The jobs a child has claimed and not begun, and when it looks for more."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .. import handlers, services
from ..engine.lanes import MOST_KEYS
from ..engine.workers import give_back_unheld, load_whole, renew
from ..exceptions import QueueNotFound
from ..handlers import Handler
from ..models import Job, Queue
from ..policies import LANED, QueuePolicy
from ..signals import job_finished, job_started
from ..states import FailureReason
from ..timings import LATE_SECONDS
from .ahead import Ahead
from .event_loop import Item
from .outcomes import Failed, Result
from .sessions import DATABASE_ERRORS

if TYPE_CHECKING:
    from .child import Child

logger = logging.getLogger("django_jobqueue.worker")

LONGEST_SECONDS = 1.0  # without looking at anything
REFRESH_SECONDS = 10.0  # how often the list of queues is read again
STALE_SECONDS = 1.0  # claimed work that nobody began for that long goes back
EMPTY_SECONDS = 0.005  # an empty queue is not looked at again sooner, however often somebody wakes us

BATCHES = 2  # that are claimed and not begun, at most: one to begin, one to come
LANES = 500  # of a queue that are in a child's hands, at most: some to be written, some to run, some to come
LANES_AT_ONCE = 100  # to be taken, so that other children get theirs
AFTER_TROUBLE_SECONDS = 30.0  # without fetching ahead, perhaps because there is no connection or no thread to spare

LATE = 4  # a job that has waited this part of its time is given its whole time again before it begins
SUSPECT_SECONDS = 5.0  # a job that has waited that long to run alone goes back, to another worker perhaps

CHUNK_SECONDS = 0.001
MOST_IN_CHUNK = 200


class Line:
    """The jobs a child has claimed and not begun, and what it knows of its queues."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.suspects: deque[Item] = deque()  # jobs that would be given up after one more crash: they run alone
        self.alone: UUID | None = None  # the one of them that runs
        self.lanes_open_at = 0.0  # until then no lane is taken, because a standby was promoted a moment ago
        self.is_drained = False
        self._queues: deque[str] = deque()  # in the order of their turns
        self._look_at: dict[str, float] = {}  # when to look at each
        self._empty_at: dict[str, float] = {}  # when nothing was found
        self._woken: set[str] = set()  # those somebody woke us for; filled by the listener's thread
        self._asynchronous: set[str] = set()  # those whose handlers all are
        self._by_group: set[str] = set()  # those that are read by group
        self._laned: set[str] = set()  # those that have lanes
        self._with_lanes: set[str] = set()  # those of which enough lanes were taken
        self._shown: set[str] = set()  # those of which a handler gets the whole job
        self._bookmarks: dict[str, services.Bookmark] = {}
        self._refreshed_at = float("-inf")
        self._handlers: dict[tuple[str, str], Handler[..., Any]] = {}
        self._ahead = Ahead(child.using, child.wake)
        self._asked_of = ""  # the queue that is being fetched from
        self._asked_at = 0.0  # and since when
        self._arrived: list[Job] = []  # what came from there and has not begun
        self._not_ahead_before = 0.0
        self._waits_since: tuple[int, float] | None = None  # how many had begun then, and when that was
        self._seconds: float | None = None  # what a plain handler took lately

    def woken(self, queue: str) -> None:
        """Somebody says that there is something to fetch, in any queue if it is not named."""
        if not queue or queue in self._look_at:
            self._woken.add(queue)
            self.child.wake.set()

    def patience(self) -> float:
        """For how long there is nothing to look at."""
        if self._ahead.is_waited_for():
            return LONGEST_SECONDS  # it wakes us
        if self._arrived:
            return 0.0
        now = time.monotonic()
        open_ones = [at for queue, at in self._look_at.items() if self._room(queue) > 0]
        return max(0.0, min([*open_ones, now + LONGEST_SECONDS]) - now)

    def learn(self, batch: Sequence[Result]) -> None:
        """How long plain handlers take; the newest results weigh most."""
        known, asynchronous = self._seconds, self.child.asynchronous
        for job, _, seconds in batch:
            if seconds and not (asynchronous and job.id in asynchronous):
                known = seconds if known is None else known + (seconds - known) * 0.05
        self._seconds = known

    def is_starving(self) -> bool:
        """Whether handlers have nothing more to begin."""
        return self.child.executor.ready.empty()

    def most_at_once(self, policy: str) -> int:
        """How many results to write together: of lanes what one transaction may, so that others run meanwhile."""
        most = self.child.settings.BATCH_SIZE
        return min(most, MOST_KEYS) if policy in LANED else 2 * most

    def is_careful(self) -> bool:
        """Whether a suspect runs or waits to run, so that nothing else may begin."""
        if self.alone is not None and self.alone not in self.child.held:
            self.alone = None
        return self.alone is not None or bool(self.suspects)

    # ------------------------------------------------------------------------------------------------- fetching

    def _room(self, queue: str) -> int:
        """How many more jobs to claim: what can begin now, and what will begin within the prefetch time."""
        child, settings = self.child, self.child.settings
        if self.is_careful() or (queue in self._laned and time.monotonic() < self.lanes_open_at):
            return 0
        most = child.recorder.room_for_jobs() if child.options.max_jobs else settings.BATCH_SIZE
        if queue in self._asynchronous:
            begun = len(child.asynchronous) + self._ahead.asked + len(self._arrived)
            return min(most, settings.BATCH_SIZE, settings.ASYNC_CONCURRENCY - begun)
        unrecorded = child.recorder.unrecorded()
        unended = max(0, len(child.held) - len(child.asynchronous) - unrecorded)
        running = max(min(unended, child.options.concurrency), child.executor.busy())  # also with claims that were lost
        waiting = max(0, unended - running) + self._ahead.asked
        ahead = 0
        if self._seconds is not None:
            ahead = int(child.options.concurrency * settings.PREFETCH_SECONDS / max(self._seconds, 1e-6))
        wanted = min(BATCHES * settings.BATCH_SIZE, max(0, child.options.concurrency - running) + ahead)
        if waiting > wanted // 2 or unrecorded >= settings.BATCH_SIZE:
            return 0
        if queue in self._laned:
            most = min(most, self._room_for_lanes(queue))
        return min(most, settings.BATCH_SIZE, wanted - waiting)

    def _room_for_lanes(self, queue: str) -> int:
        """Who has a lane keeps it for many jobs: so it takes few at a time, and none while it has enough to be busy."""
        held = sum(job.__dict__["queue_id"] == queue for job in self.child.held.values())
        if held >= LANES:
            self._with_lanes.add(queue)
        elif held < MOST_KEYS:
            self._with_lanes.discard(queue)
        return 0 if queue in self._with_lanes else min(LANES_AT_ONCE, LANES - held)

    def fill(self, now: float) -> bool:
        """Claim from the queues that may have something; whether anything came."""
        self.is_drained = False
        if self.is_careful():
            return self._run_suspect()
        if self._ahead.is_waited_for():
            return False
        came = self._begin_arrived(now)
        if now - self._refreshed_at > REFRESH_SECONDS:
            self._refresh(now)
        looked = 0
        for queue in list(self._queues):
            if self._ahead.asked or self._room(queue) < 1:
                continue
            self._hear()
            self._queues.remove(queue)  # its turn comes again after the others'
            self._queues.append(queue)
            looked += 1
            if self._look_at[queue] <= now:
                room = self._room(queue)
                if self._fetches_ahead(queue, room, now):
                    continue
                jobs = self._fetch(queue, room)
                self._plan_next_look(queue, jobs, room, now)
                if queue in self._by_group:
                    self._take_groups(jobs)
                else:
                    self.take(jobs)
                came = came or bool(jobs)
        self.is_drained = looked == len(self._queues) and not (came or self._woken or self._ahead.asked)
        return came

    def is_empty(self, now: float) -> bool:
        """Whether a look at every queue finds nothing: what has just failed may wait for its next attempt already."""
        self._look_at = dict.fromkeys(self._look_at, 0.0)
        self._empty_at.clear()  # else whoever woke us for it would have us look a moment later
        return not self.fill(now) and not self._ahead.asked

    # ------------------------------------------------------------------------------------------- fetching ahead

    def _fetches_ahead(self, queue: str, room: int, now: float) -> bool:
        """Many at once, where the last fetch gave all that was asked for: else it would gain nothing."""
        if self.child.options.max_jobs or queue in self._by_group or queue not in self._bookmarks:
            return False
        if room < self.child.settings.BATCH_SIZE // 2 or now < self._not_ahead_before:
            return False
        try:
            self._ahead.ask(partial(self._fetch, queue, room), room)
        except RuntimeError:
            self._not_ahead_before = now + AFTER_TROUBLE_SECONDS
            return False
        self._asked_of, self._asked_at = queue, now
        return True

    def settle(self) -> None:
        """Wait for what is being fetched, so that all that is claimed is known; it begins with the next turn."""
        if not self._ahead.asked:
            return
        asked = self._ahead.asked
        try:
            self._arrived = self._ahead.answer()
        except Exception:
            self._not_ahead_before = time.monotonic() + AFTER_TROUBLE_SECONDS
            raise
        self.child.held.update((job.id, job) for job in self._arrived)
        if self._asked_of in self._look_at:  # it may have been deleted meanwhile
            self._plan_next_look(self._asked_of, self._arrived, asked, time.monotonic())

    def _begin_arrived(self, now: float) -> bool:
        self.settle()
        jobs = self._arrived
        if not jobs:
            return False
        if now - self._asked_at > LATE_SECONDS:  # perhaps it waited while a suspect ran alone
            jobs = self._renew(jobs)
        self._arrived = []  # only now: while the database is away they wait here
        if self._asked_of in self._look_at:
            self._ask_for_more(now)
        self.take(jobs)
        return True

    def distrust_arrived(self) -> None:
        """After a lost connection: what was fetched ahead and has not begun is verified before it begins."""
        self._asked_at = float("-inf")

    def _ask_for_more(self, now: float) -> None:
        """Before the batch that came is begun, so that the server has something to do meanwhile."""
        queue = self._asked_of
        if queue == self._queues[0] and self._look_at[queue] <= now:
            self._fetches_ahead(queue, self._room(queue), now)

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
                whole=self.shows(queue),
                using=child.using,
            )
        except QueueNotFound:
            logger.warning("a queue is gone", extra={"worker": child.name, "queue": queue})
            self._refreshed_at = float("-inf")
            return []

    def shows(self, queue: str) -> bool:
        """Whether somebody besides us sees the jobs of this queue, and may ask for anything they carry."""
        child = self.child
        return bool(
            queue in self._shown
            or queue in self._by_group
            or child.handler is not None
            or child.executor.around is not None
            or job_started.receivers
            or job_finished.receivers
        )

    def _refresh(self, now: float) -> None:
        """The queues there are: those asked for, or all that have a handler."""
        child = self.child
        policies = dict(Queue.objects.using(child.using).order_by("name").values_list("name", "policy"))
        there = list(policies)
        self._laned = {name for name, policy in policies.items() if policy in LANED}
        if child.options.grouping:
            self._by_group = {name for name, policy in policies.items() if policy == QueuePolicy.STANDARD}
        known = handlers.all_handlers()
        asked = set(child.options.queues) or handlers.served(known)
        wanted = [name for name in there if name in asked]
        self._look_at = {name: self._look_at.get(name, 0.0) for name in wanted}
        if set(self._queues) != set(wanted):
            self._queues = deque(wanted)
        self._shown = handlers.served(handler for handler in known if handler.takes_context)
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
        bare: list[Job] = []
        held, known = child.held, self._handlers
        suspicious = max(1, child.settings.CRASH_LIMIT - 1)
        for job in jobs:
            handler = known.get((job.queue_id, job.name))
            if handler is None:
                handler = self._find(job)
                if handler is None:
                    continue
            held[job.id] = job
            seconds = job.expire_in_seconds
            job.deadline, job.begin_by = now + seconds, now + seconds / LATE
            if handler.takes_context and "tags" not in job.__dict__:
                bare.append(job)
            if job.crashes >= suspicious:
                self.suspects.append((job, handler))
            elif handler.is_async:
                asynchronous.append((job, handler))
            else:
                plain.append((job, handler))
        if bare:  # of a handler that belongs to another queue
            try:
                load_whole(bare, using=child.using)
            except DATABASE_ERRORS:
                for job, _ in [*plain, *asynchronous]:  # held but never begun, they would wait until they expire
                    del held[job.id]
                raise
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
            job.deadline, job.begin_by = now + job.expire_in_seconds, now + job.expire_in_seconds / LATE
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
        if self.alone is not None or len(child.held) > len(self.suspects) + len(self._arrived):
            return False
        job, handler = self.suspects[0]
        is_ours = bool(self._renew([job]))
        self.suspects.popleft()  # only now: while the database is away it waits here
        if not is_ours:
            return True
        self.alone = job.id
        if handler.is_async:
            child.executor.start_async([(job, handler)])
        else:
            child.executor.begin([(job, handler)], 1)
        return True

    def _renew(self, jobs: list[Job]) -> list[Job]:
        """Those of these jobs that are still ours, each with its whole time; the others are dropped."""
        child = self.child
        ours = renew(jobs, using=child.using)
        now = time.monotonic()
        for job in ours:
            job.deadline, job.begin_by = now + job.expire_in_seconds, now + job.expire_in_seconds / LATE
        child.recorder.drop(job for job in jobs if job not in ours)
        return ours

    def begin_late(self, jobs: list[Job]) -> None:
        """Jobs that were not begun because their claims had to be verified; those of a group go back with it."""
        for job in jobs:
            if job.came_by_group:
                self.child.recorder.return_one(job, "it was begun too late")
        self.take(self._renew([job for job in jobs if not job.came_by_group]))

    # --------------------------------------------------------------------------------------------- giving back

    def take_back(self) -> list[Job]:
        """What is claimed and not begun, no longer to be begun."""
        self.settle()
        jobs = [*self._arrived, *(job for job, _ in [*self.suspects, *self.child.executor.take_back()])]
        self.suspects.clear()
        self._arrived = []
        return jobs

    def close(self) -> None:
        self._ahead.close()

    def return_stale(self, now: float) -> None:
        """Claimed work that has to wait, because its predecessors take longer than those before them, goes back."""
        child = self.child
        self._return_suspects(now)
        child.executor.spread(now)
        if self._by_group and (behind := child.executor.behind_slow(now, STALE_SECONDS)):
            self._return(job for job, _ in behind)
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

    def _return_suspects(self, now: float) -> None:
        """Jobs that wait to run alone while another of them runs long: their time in the database goes by."""
        waited = [item for item in self.suspects if now > min(item[0].begin_by, _taken_at(item[0]) + SUSPECT_SECONDS)]
        for item in waited:
            self.suspects.remove(item)
        if waited:
            self._return(job for job, _ in waited)

    def _return(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.child.held.pop(job.id, None)
        self._give_back("its worker was too busy to begin")

    def _give_back(self, why: str) -> None:
        child = self.child
        self.settle()
        give_back_unheld(child.name, child.incarnation, child.held.values(), why, using=child.using)


def _taken_at(job: Job) -> float:
    return job.deadline - job.expire_in_seconds
