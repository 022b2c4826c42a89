"""Running handlers: plain handlers in threads, asynchronous handlers in an event loop."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import CoroutineType
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils.module_loading import import_string

from .. import carriers, services
from ..claims import Claim
from ..conf import get_settings
from ..engine.lanes import chunks
from ..exceptions import ClaimLost
from ..handlers import Handler, JobContext, JobExpired
from ..log_texts import job_label
from ..models import Job
from ..signals import job_started
from .event_loop import EventLoop, Item
from .isolation import ThreadEnvironment, TransactionLeftOpen
from .outcomes import (
    SWALLOWED,
    Completed,
    Ending,
    Failed,
    Late,
    NotBegun,
    Recorded,
    Result,
    continues_group,
    ending_for_error,
    expired,
)
from .slots import Slots

logger = logging.getLogger("django_jobqueue.worker")

SLOW_SECONDS = 0.05
FORKED_EXIT = 70  # exit code of a process that a handler forked and that returned from the handler


Around = Callable[[Job], AbstractContextManager[Any]]


def around() -> Around | None:
    """The context managers around every run: those of the carriers, and that of ``JOBQUEUE["AROUND"]``."""
    path = get_settings().AROUND
    if path is None:
        return carriers.around(None)
    try:
        manager: Around = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"JOBQUEUE['AROUND']: {path!r} cannot be imported: {error}.") from error
    return carriers.around(manager)


Chunk = deque[Item]  # the jobs of a thread; the child may withdraw them while the thread is busy


class Group(Chunk):
    """Jobs that run one after another, each only if the job before it has succeeded."""


def emptied(chunk: Chunk) -> list[Item]:
    """Take all items out of a chunk. Its thread may take items at the same time."""
    items = []
    with suppress(IndexError):
        while True:
            items.append(chunk.popleft())
    return items


class Executor:
    """Runs the handlers of a child. :meth:`begin` takes jobs; results are put into ``results``, and ``wake`` is set."""

    def __init__(
        self,
        concurrency: int,
        slots: Slots,
        wake: threading.Event,
        using: str,
        *,
        own: Collection[str] = (),  # queues whose jobs run in threads that run no others
        own_threads: int = 0,
    ) -> None:
        self.ready: SimpleQueue[Chunk | None] = SimpleQueue()
        self._own, self._own_ready = own, SimpleQueue[Chunk | None]()
        self.results: deque[Result] = deque()
        self.contexts: dict[Claim | None, JobContext] = {}  # of handlers that take the context
        self.slots, self.wake, self.using = slots, wake, using
        self.reports: dict[Claim | None, tuple[Job, float | None, str]] = {}  # progress that is not yet written
        self.around = around()
        self.loop: EventLoop | None = None
        _Fork.watch()
        self.began = 0  # how many handlers have begun, approximately: it is counted without a lock
        self.outages = 0  # how often the connection to the database was lost: older connections are dropped
        self._threads = [_Thread(self, slot, self.ready) for slot in range(concurrency)]
        self._shared_threads = tuple(self._threads)
        self._threads += [_Thread(self, concurrency + slot, self._own_ready) for slot in range(own_threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads: idle threads now, others after their handlers if the process still runs."""
        for thread in self._threads:
            thread.ready.put(None)
        if self.loop is not None:
            self.loop.stop()

    def begin(self, items: list[Item], chunk: int) -> None:
        """Run plain handlers, ``chunk`` of them one after the other in a thread."""
        if self._own:
            for item in items:
                if item[0].queue_id in self._own:
                    self._own_ready.put(deque((item,)))
            items = [item for item in items if item[0].queue_id not in self._own]
        for some in chunks(items, chunk):
            self.ready.put(deque(some))

    def begin_group(self, items: list[Item]) -> None:
        """Run these jobs in their order. All handlers must be plain, or all asynchronous."""
        if items[0][1].is_async:
            self._event_loop().submit_group(items)
        else:
            ready = self._own_ready if items[0][0].queue_id in self._own else self.ready
            ready.put(Group(items))

    def withdraw_behind_slow(self, now: float, seconds: float) -> list[Item]:
        """Withdraw jobs that wait behind a job of their group for longer than ``seconds``; they will not begin here."""
        items = [] if self.loop is None else self.loop.withdraw_behind_slow(now, seconds)
        for thread in self._threads:
            if isinstance(thread.chunk, Group) and thread.job is not None and now - thread.began_at > seconds:
                items += emptied(thread.chunk)
        return items

    def spread(self, now: float) -> None:
        """Move jobs that wait behind a slow job to other threads, except those of a group."""
        for thread in self._threads:
            if thread.chunk and not isinstance(thread.chunk, Group) and now - thread.began_at > SLOW_SECONDS:
                for item in emptied(thread.chunk):
                    thread.ready.put(deque((item,)))

    def withdraw(self) -> list[Item]:
        """Withdraw all jobs of threads that have not begun; they will not begin here."""
        items: list[Item] = []
        for thread in self._threads:
            items += emptied(thread.chunk)
        for ready in (self.ready, self._own_ready):
            with suppress(Empty):
                while True:
                    items += emptied(ready.get_nowait() or deque())
        return items

    def start_async(self, jobs: Iterable[Item]) -> None:
        self._event_loop().submit(list(jobs))

    def _event_loop(self) -> EventLoop:
        if self.loop is None:
            self.loop = EventLoop(self, first_slot=len(self._threads))
            self.loop.start()
        return self.loop

    def overdue(self, now: float) -> list[Job]:
        """Jobs whose time is used up and whose handlers still run."""
        running = [thread.job for thread in self._threads]
        return [job for job in running if job is not None and now > job.deadline]

    def interrupt_overdue(self, now: float) -> None:
        """Raise ``JobExpired`` in threads whose handler has used up its time."""
        for thread in self._threads:
            thread.interrupt_overdue(now)

    def running(self) -> list[Job]:
        """The jobs inside a handler."""
        in_threads = [job for thread in self._threads if (job := thread.job) is not None]
        return in_threads + (self.loop.running() if self.loop is not None else [])

    def busy(self) -> int:
        """How many threads are inside a handler, without those of queues that have threads of their own."""
        return sum(thread.job is not None for thread in self._shared_threads)

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Tell the handlers of these jobs that they were cancelled."""
        for job in jobs:
            context = self.contexts.get(job.claim)
            if context is not None:
                context.cancelled = True
            if self.loop is not None:
                self.loop.cancel(job.claim)

    def abandon(self, jobs: Collection[Job]) -> None:
        """Stop handlers whose claim was lost, because another worker may run the job, or the next job of its key.

        A handler that has a context is told first, and interrupted at the second call.
        """
        warned = [job for job in jobs if (context := self.contexts.get(job.claim)) and not context.cancelled]
        self.cancel(jobs)
        for job in jobs:
            for thread in self._threads if job not in warned else ():
                thread.interrupt(job)

    # ------------------------------------------------------------------------------------------ around one handler

    def context_of(self, handler: Handler[..., Any, Any], job: Job) -> JobContext | None:
        if not handler.takes_context:
            return None
        context = _Context(job, self)
        self.contexts[job.claim] = context
        return context


class _Context(JobContext):
    def __init__(self, job: Job, executor: Executor) -> None:
        super().__init__(job)
        self._executor = executor

    def _report(self, fraction: float, text: str) -> None:
        self._executor.reports[self.job.claim] = (self.job, fraction, text)

    def _touch(self) -> None:
        self._executor.reports.setdefault(self.job.claim, (self.job, None, ""))


class _Thread(threading.Thread):
    """Runs one job after another. An exception of a handler is recorded in its job and does not end the thread."""

    def __init__(self, executor: Executor, slot: int, ready: SimpleQueue[Chunk | None]) -> None:
        super().__init__(name=f"jobqueue-handler-{slot}", daemon=True)
        self.executor, self.slot, self.ready = executor, slot, ready
        self.job: Job | None = None
        self.chunk: Chunk = deque()
        self.began_at = 0.0
        self._interrupted: Job | None = None
        self._interrupting = threading.Lock()

    def run(self) -> None:
        ready, environment = self.ready, ThreadEnvironment()
        while (chunk := ready.get()) is not None:
            self.chunk = chunk
            while chunk:
                try:
                    job, handler = chunk.popleft()
                except IndexError:  # the rest of the chunk was withdrawn
                    break
                ending = self._run_one(job, handler, environment)
                if isinstance(chunk, Group) and not continues_group(ending):
                    self.executor.results.extend((rest, NotBegun(), 0.0) for rest, _ in emptied(chunk))
            self.executor.slots.leave(self.slot)  # also when the rest was withdrawn
        environment.close()

    def _run_one(self, job: Job, handler: Handler[..., Any, Any], environment: ThreadEnvironment) -> Ending:
        executor = self.executor
        began = self.began_at = time.monotonic()
        if began > job.begin_by:
            executor.results.append((job, Late(), 0.0))
            self._wake()
            return Late()
        executor.began += self.ready is executor.ready
        executor.slots.enter(self.slot, job.id.bytes, job.held_number or 0, job.deadline)
        environment.begin(executor.outages)
        ending: Ending | None = None
        try:
            self.job = job
            ending = self._work_on(job, handler, environment)
        except JobExpired:
            pass
        finally:
            self.job = None
        self._clear_interrupt()
        if ending is None:  # interrupted, perhaps while the environment was restored
            with suppress(TransactionLeftOpen):
                environment.restore()
        ending = ending or expired(job)
        executor.results.append((job, ending, time.monotonic() - began))
        if not self.chunk:  # otherwise the next job begins at once, and the child wakes up often enough
            executor.slots.leave(self.slot)
            self._wake()
        return ending

    def _wake(self) -> None:
        if self.ready.empty() and not self.executor.wake.is_set():
            self.executor.wake.set()

    def interrupt_overdue(self, now: float) -> None:
        job = self.job
        if job is not None and now > job.deadline:
            self.interrupt(job)

    def interrupt(self, job: Job) -> None:
        """Raise ``JobExpired`` in the handler of this job, if it still runs here; once."""
        with self._interrupting:
            if self.job is not job or self._interrupted is job:
                return
            self._interrupted = job
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(JobExpired))

    def _clear_interrupt(self) -> None:
        """Remove an interrupt that came too late, so that it does not hit the next job."""
        while True:
            try:
                if self._interrupted is not None:
                    with self._interrupting:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), None)
                        self._interrupted = None
                return
            except JobExpired:
                continue

    def _work_on(self, job: Job, handler: Handler[..., Any, Any], environment: ThreadEnvironment) -> Ending:
        executor = self.executor
        if job_started.receivers:
            job_started.send_robust(sender=Job, job=job)
        context = executor.context_of(handler, job)
        try:
            run = run_atomic if handler.atomic else run_plain
            ending: Ending = copy_context().run(run, handler, job, context, executor)
        except BaseException as error:  # a handler may raise anything, and the thread must go on
            ending = ending_for_error(handler, job, error)
        if context is not None:
            executor.contexts.pop(job.claim, None)
        try:
            environment.restore()
        except TransactionLeftOpen as error:
            if isinstance(ending, Completed):
                ending = Failed(error)
        return ending


class RunContext(Protocol):
    """Where a handler runs: the database, and the context managers around it."""

    around: Around | None
    using: str


def run_plain(handler: Handler[..., Any, Any], job: Job, context: JobContext | None, executor: RunContext) -> Ending:
    if executor.around is None:
        return Completed(_call(handler, job, context))
    with executor.around(job):
        return Completed(_call(handler, job, context))
    return SWALLOWED


def run_atomic(handler: Handler[..., Any, Any], job: Job, context: JobContext | None, executor: RunContext) -> Ending:
    """The work of the handler and its completion in a single transaction: both happen, or neither."""
    try:
        with executor.around(job) if executor.around else nullcontext(), transaction.atomic(using=executor.using):
            output = _call(handler, job, context)
            services.complete(job, output, using=executor.using)
            return Recorded()
    except ClaimLost as error:
        if error.job_id != job.pk:
            raise
        return Recorded(lost=True)
    return SWALLOWED


def _call(handler: Handler[..., Any, Any], job: Job, context: JobContext | None) -> Any:
    try:
        output = handler.call(job, context)
    finally:
        if _Fork.happened:  # a process that the handler forked: it shares the sockets, and must not use them
            _exit_fork(job)
    if type(output) is CoroutineType:
        output.close()
        raise TypeError(f"{handler.name} returned a coroutine, which is never awaited: declare it with async def.")
    return output


class _Fork:
    """Whether a handler forked this process."""

    happened = False
    is_watched = False

    @classmethod
    def watch(cls) -> None:
        cls.happened = False
        if not cls.is_watched and hasattr(os, "register_at_fork"):  # Windows has no fork
            cls.is_watched = True
            os.register_at_fork(after_in_child=cls._note)

    @classmethod
    def _note(cls) -> None:
        cls.happened = True


def _exit_fork(job: Job) -> None:
    logger.warning(
        "handler forked and the copy returned: %s; the copy with pid %d is ended",
        job_label(job),
        os.getpid(),
        extra={"job": str(job.pk), "queue": job.queue_id, "handler": job.name, "pid": os.getpid()},
    )
    os._exit(FORKED_EXIT)
