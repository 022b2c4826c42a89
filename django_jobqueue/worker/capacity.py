"""How many more jobs a child may claim from a queue."""

from __future__ import annotations

import time

from ..conf import Settings
from ..engine.lanes import MOST_KEYS
from .claims import HeldClaims
from .executor import Executor
from .options import WorkerOptions
from .pace import HandlerPace
from .polling import ServedQueue

BATCHES = 2  # at most this many batches are claimed and not begun: one to begin, one on its way
LANES = 500  # at most this many lanes of a queue are held by a child: some to record, some to run, some on their way
LANES_AT_ONCE = 100  # lanes in one fetch, so that other children get lanes too


class Capacity:
    """The number of jobs that can begin now or within ``PREFETCH_SECONDS``."""

    def __init__(
        self, claims: HeldClaims, executor: Executor, pace: HandlerPace, options: WorkerOptions, settings: Settings
    ) -> None:
        self.lanes_open_at = 0.0  # no lane is claimed before, because a standby was promoted a moment ago
        self._claims, self._executor, self._pace = claims, executor, pace
        self._options, self._settings = options, settings
        self._with_enough_lanes: set[str] = set()  # queues

    def room(self, queue: ServedQueue, requested: int) -> int:
        """How many more jobs to claim from this queue, if so many are requested already."""
        if self._claims.is_isolating() or (queue.has_lanes and time.monotonic() < self.lanes_open_at):
            return 0
        batch_size = self._settings.BATCH_SIZE
        most = min(self._claims.remaining(), batch_size) if self._options.max_jobs else batch_size
        if queue.name in self._options.own:
            room = self._own_room(queue.name)
            return min(most, room, self._lane_room(queue.name)) if queue.has_lanes else min(most, room)
        if queue.is_async:
            return min(most, self._async_room(requested))
        room = self._thread_room(requested)
        if room > 0 and queue.has_lanes:
            room = min(room, self._lane_room(queue.name))
        return min(most, room)

    def _own_room(self, name: str) -> int:
        """As many as this queue has idle threads: none of its jobs is claimed before it can begin."""
        own = self._options.own
        held = {job.claim: job.queue_id for job in [*self._claims.jobs.values(), *self._executor.running()]}
        of_queue = sum(queue == name for queue in held.values())
        of_all = sum(queue in own for queue in held.values())
        return min(own[name] - of_queue, self._options.own_threads - of_all)

    def _apart(self) -> tuple[int, int, int]:
        """How many jobs of queues with threads of their own are held, run asynchronously, and are not recorded."""
        own, claims = self._options.own, self._claims
        if not own:
            return 0, 0, 0
        apart = {id for id, job in claims.jobs.items() if job.queue_id in own}
        unrecorded = sum(job.queue_id in own for job, _, _ in list(self._executor.results))
        unrecorded += sum(outcome.job.queue_id in own for outcome in claims.locked.values())
        return len(apart), len(apart & claims.asynchronous), unrecorded

    def _async_room(self, requested: int) -> int:
        begun = len(self._claims.asynchronous) + requested + len(self._claims.prefetched) - self._apart()[1]
        return self._settings.ASYNC_CONCURRENCY - begun

    def _thread_room(self, requested: int) -> int:
        """0 while more than half of the target waits, or while a whole batch of results is not recorded."""
        claims, settings, concurrency = self._claims, self._settings, self._options.shared_threads
        held, asynchronous, recorded_apart = self._apart()
        unrecorded = len(self._executor.results) + len(claims.locked) - recorded_apart
        unended = max(0, len(claims.jobs) - held - len(claims.asynchronous) + asynchronous - unrecorded)
        running = max(min(unended, concurrency), self._executor.busy())  # threads may be busy with lost claims
        waiting = max(0, unended - running) + requested
        ahead = self._pace.jobs_within(settings.PREFETCH_SECONDS, concurrency)
        target = min(BATCHES * settings.BATCH_SIZE, max(0, concurrency - running) + ahead)
        if waiting > target // 2 or unrecorded >= settings.BATCH_SIZE:
            return 0
        return target - waiting

    def _lane_room(self, queue: str) -> int:
        """A child keeps a lane for many jobs: so it claims few lanes at a time, and none while it has enough."""
        held = sum(job.__dict__["queue_id"] == queue for job in self._claims.jobs.values())
        if held >= LANES:
            self._with_enough_lanes.add(queue)
        elif held < MOST_KEYS:
            self._with_enough_lanes.discard(queue)
        return 0 if queue in self._with_enough_lanes else min(LANES_AT_ONCE, LANES - held)
