"""Asynchronous handlers: they run as tasks of an event loop, which has its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from ..claims import Claim
from ..exceptions import JobQueueError
from ..handlers import Handler
from ..models import Job
from ..signals import job_started
from .outcomes import SWALLOWED, Completed, Ending, Late, NotBegun, Stopped, continues_group, ending_for_error, expired

if TYPE_CHECKING:
    from .executor import Executor

Item = tuple[Job, Handler[..., Any, Any]]


class EventLoop(threading.Thread):
    """Runs the asynchronous handlers of a child, each as a task."""

    def __init__(self, executor: Executor, first_slot: int) -> None:
        super().__init__(name="jobqueue-event-loop", daemon=True)
        self.executor = executor
        self._free = deque(range(first_slot, executor.slots.count))
        self._waiting: deque[Item] = deque()  # jobs that wait for a free slot
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[Claim | None, asyncio.Task[None]] = {}
        self._jobs: dict[Claim | None, Job] = {}
        self._behind: dict[Claim | None, tuple[float, deque[Item]]] = {}
        self._cancelled: set[Claim | None] = set()  # cancelled by the worker; a handler may raise CancelledError too

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(sync_to_async(connections.close_all)())  # of asynchronous ORM calls
        finally:
            self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def submit(self, jobs: list[Item]) -> None:
        self._loop.call_soon_threadsafe(self._start, jobs)

    def submit_group(self, jobs: list[Item]) -> None:
        """Start the first job, and each of the others when the job before it has succeeded."""
        self._loop.call_soon_threadsafe(self._start_group, deque(jobs))

    def withdraw_behind_slow(self, now: float, seconds: float) -> list[Item]:
        slow = [claim for claim, (began, _) in list(self._behind.items()) if now - began > seconds]
        return [item for claim in slow for item in self._behind.pop(claim, (0.0, ()))[1]]

    def running(self) -> list[Job]:
        return list(self._jobs.values())

    def cancel(self, claim: Claim | None) -> None:
        self._loop.call_soon_threadsafe(self._cancel, claim)

    def _cancel(self, claim: Claim | None) -> None:
        task = self._tasks.get(claim)
        if task is not None and claim not in self._cancelled:  # only once: the handler may need a moment to clean up
            self._cancelled.add(claim)
            task.cancel()

    def _start(self, jobs: list[Item]) -> None:
        self._waiting.extend(jobs)
        while self._free and self._waiting:
            job, handler = self._waiting.popleft()
            if time.monotonic() > job.begin_by:
                self._end(job, Late(), 0.0)
                continue
            self._jobs[job.claim] = job
            self._tasks[job.claim] = self._loop.create_task(self._work_on(job, handler, self._free.popleft()))

    def _start_group(self, jobs: deque[Item]) -> None:
        item = jobs.popleft()
        if jobs:
            self._behind[item[0].claim] = (time.monotonic(), jobs)
        self._start([item])

    def _continue_group(self, job: Job, ending: Ending) -> None:
        """Start the next job of the group, or none if this job did not succeed."""
        _, behind = self._behind.pop(job.claim, (0.0, None))
        if behind and continues_group(ending):
            self._start_group(behind)
        elif behind:
            self.executor.results.extend((rest, NotBegun(), 0.0) for rest, _ in behind)

    async def _work_on(self, job: Job, handler: Handler[..., Any, Any], slot: int) -> None:
        executor = self.executor
        began = time.monotonic()
        executor.slots.enter(slot, job.id.bytes, job.held_number or 0, job.deadline)
        if job_started.receivers:
            job_started.send_robust(sender=Job, job=job)
        try:
            ending = await self._run(job, handler)
        except BaseException as error:  # a handler may raise anything
            ending = ending_for_error(handler, job, error)
            if not isinstance(error, JobQueueError):
                await sync_to_async(close_old_connections)()
        executor.contexts.pop(job.claim, None)
        executor.slots.leave(slot)
        self._free.append(slot)
        del self._tasks[job.claim], self._jobs[job.claim]
        self._cancelled.discard(job.claim)
        self._end(job, ending, time.monotonic() - began)
        self._start([])

    def _end(self, job: Job, ending: Ending, seconds: float) -> None:
        self.executor.results.append((job, ending, seconds))
        self._continue_group(job, ending)
        self.executor.wake.set()

    async def _run(self, job: Job, handler: Handler[..., Any, Any]) -> Ending:
        executor = self.executor
        context = executor.context_of(handler, job)
        try:
            async with asyncio.timeout_at(job.deadline) as limit:
                with executor.around(job) if executor.around else nullcontext():
                    return Completed(await handler.call(job, context))
                return SWALLOWED
        except TimeoutError:
            if limit.expired():
                return expired(job)
            raise
        except asyncio.CancelledError:
            if job.claim in self._cancelled:
                return Stopped("cancelled")
            raise
