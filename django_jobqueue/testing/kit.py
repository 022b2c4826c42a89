"""The kit for tests: runs jobs, waits for them, and asserts what was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Literal, Self, get_args
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db.models import Max
from django.utils import timezone

from .. import handlers, services
from ..conf import get_encoder, get_settings
from ..encoding import decode, encode
from ..engine import announcements
from ..engine.databases import database
from ..exceptions import InvalidOption
from ..handlers import Handler, JobContext
from ..identifiers import uuid7
from ..models import Job, Queue
from ..outputs import clean_output
from ..signals import job_finished
from ..states import Hold, JobState
from ..worker import work
from ..worker.inline import Attempt, Inline, awaited
from ..worker.outcomes import Failed
from ..worker.served_queues import queues_of_workers
from .fifo import assert_fifo
from .matching import check_expected, described, differences, listed
from .racing import check_committed, race

Mode = Literal["manual", "immediate", "real"]
WORKER = "testing"
MOST_ATTEMPTS = 1_000
PATIENCE_SECONDS = 10.0


class JobQueueKit:
    """The class of ``self.jobqueue`` of :class:`JobQueueTestMixin` and of the fixture ``jobqueue``.

    In the mode ``manual`` jobs wait for :meth:`drain`. In ``immediate`` they run when they are sent, before ``send``
    returns. In ``real`` a worker in threads of this process runs them; this needs tests that commit.
    """

    def __init__(self, mode: Mode = "manual", *, reraise: bool = False, using: str | None = None) -> None:
        self._mode = _checked(mode)
        self.reraise = reraise
        self._using = using
        self._since = 0
        self._busy = False
        self._finished = threading.Condition()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._since = self._jobs().aggregate(last=Max("seq"))["last"] or 0
        job_finished.connect(self._hear_finished)
        self._stack.callback(job_finished.disconnect, self._hear_finished)
        self._stack.enter_context(self.mode(self._mode))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def using(self) -> str:
        return database(self._using)

    # ------------------------------------------------------------------------------------------------ running jobs

    @contextmanager
    def mode(self, mode: Mode, *, reraise: bool | None = None) -> Iterator[None]:
        """Use another mode in this block. With ``reraise``, the send that ran a handler raises its error."""
        before = self._mode, self.reraise
        self._mode, self.reraise = _checked(mode), self.reraise if reraise is None else reraise
        with ExitStack() as stack:
            if mode == "immediate":
                stack.enter_context(announcements.before_commit.hearing(self._hear_sent))
            elif mode == "real":
                stack.enter_context(self._worker())
            try:
                yield
            finally:
                self._mode, self.reraise = before

    def drain(self, queue: str | None = None, *, delayed: bool = False, reraise: bool | None = None) -> list[Attempt]:
        """Run all fetchable jobs, and the jobs that these send, until none is left. Returns the attempts in order.

        Runs the jobs of a queue, or of all queues that have handlers. With ``delayed`` it also runs jobs that wait for
        their time. A handler that raises fails its job, as in a worker; with ``reraise`` the error is raised here.
        """
        reraise = self.reraise if reraise is None else reraise
        inline, attempts = Inline(self.using), list[Attempt]()
        queues = dict.fromkeys([queue], True) if queue is not None else self._queues()
        self._busy, before = True, self._busy
        try:
            while job := self._next(queues, delayed):
                if len(attempts) == MOST_ATTEMPTS:
                    raise AssertionError(f"{MOST_ATTEMPTS} attempts were run, and jobs are left: {described(job)}")
                attempts.append(inline.attempt(job))
                _raise(attempts[-1], reraise)
        finally:
            self._busy = before
        return attempts

    def perform(self, handler: Any, data: Any = None, *, attempt: int = 1, **columns: Any) -> Any:
        """See :func:`perform`."""
        return perform(handler, data, attempt=attempt, **columns)

    def wait_for(self, job: Any, state: str = JobState.COMPLETED, *, seconds: float = PATIENCE_SECONDS) -> Job:
        """Wait until a job, or the result of a task, is in this state, and return it. Runs it if no worker does.

        Raises ``AssertionError``, which says why, after ``seconds``, or if the job cannot reach the state any more.
        """
        id, deadline = getattr(job, "pk", None) or getattr(job, "id", job), time.monotonic() + seconds
        while True:
            found = services.get_job(id, using=self.using)
            if found.state == state:
                return found
            if self._mode != "real" and not self._busy and self.drain():
                continue
            left = deadline - time.monotonic()
            if left <= 0 or self._mode != "real":
                raise AssertionError(self._why_not(found, state))
            with self._finished:
                self._finished.wait(min(left, 0.1))  # a worker in another process does not notify this one

    def _why_not(self, job: Job, state: str) -> str:
        text = services.why(job, find_handler=handlers.find, using=self.using)
        error = f"\n{job.error}" if job.error else ""
        return f"The job is {job.state}, not {state}: {described(job)}\n{text}{error}"

    def _next(self, queues: Mapping[str, bool], delayed: bool) -> Job | None:
        for name, with_unnamed in queues.items():
            if delayed:
                self._make_due(name)
            skipped = () if with_unnamed else ("",)
            if jobs := services.fetch(name, worker=WORKER, skip_names=skipped, using=self.using):
                return jobs[0]
        return None

    def _make_due(self, queue: str) -> None:
        for job in self._jobs().in_queue(queue).filter(hold=Hold.UNTIL).order_by("start_after", "seq"):
            services.reschedule(job, timezone.now(), using=self.using)

    def _queues(self) -> dict[str, bool]:
        """The queues that workers would serve, and whether with jobs that name no handler."""
        handlers.autodiscover()
        return {name: handlers.runs_unnamed(name) for name in queues_of_workers(using=self.using)}

    @contextmanager
    def _worker(self) -> Iterator[None]:
        check_committed(self.using, "The mode 'real'")
        queues = self._queues()
        if not queues:
            raise AssertionError("No queue has a handler: create a queue, or declare it in settings, before the test.")
        with work(list(queues), poll_seconds=0.05, using=self.using):
            yield

    def _hear_sent(self, using: str, queue: str, ids: list[UUID]) -> None:
        if using == self.using and not self._busy:  # jobs that a handler sends run when the handler has ended
            self.drain()

    def _hear_finished(self, **kwargs: Any) -> None:
        with self._finished:
            self._finished.notify_all()

    # --------------------------------------------------------------------------------------------- what was sent

    def sent(self, target: Any = None, **expected: Any) -> list[Job]:
        """The jobs sent since the test began, in order: to a queue, or for a handler or task, with these columns."""
        meant = _meant(target, expected)
        return [job for job in self._sent() if not differences(job, meant)]

    def assert_sent(self, target: Any = None, *, count: int | None = None, **expected: Any) -> Any:
        """Assert that a matching job was sent, and return it; with ``count``, exactly so many, and return a list.

        ``target`` is the name of a queue, a handler or a task. A part of ``data`` or ``tags`` is enough to match.
        """
        meant = _meant(target, expected)
        found = self.sent(target, **expected)
        if count is None and found:
            return found[0]
        if count is not None and len(found) == count:
            return found
        wanted = "No job was" if count is None else f"Not {count} but {len(found)} jobs were"
        raise AssertionError(f"{wanted} sent with {_told(meant)}. {listed(self._sent(), meant)}")

    def assert_not_sent(self, target: Any = None, **expected: Any) -> None:
        """Assert that no matching job was sent."""
        meant = _meant(target, expected)
        if found := self.sent(target, **expected):
            jobs = "\n".join(f"  {described(job)}" for job in found)
            raise AssertionError(f"A job was sent with {_told(meant)}:\n{jobs}")

    def assert_sent_in_order(self, data: Iterable[Any], target: Any = None, **expected: Any) -> list[Job]:
        """Assert that exactly these jobs were sent, in this order; a part of the data of each is enough to match."""
        found, wanted = self.sent(target, **expected), list(data)
        pairs = list(zip(found, wanted, strict=False))
        wrong = [place for place, (job, one) in enumerate(pairs) if differences(job, {"data": one})]
        if not wrong and len(found) == len(wanted):
            return found
        lines = []
        for place in range(max(len(found), len(wanted))):
            got = described(found[place]) if place < len(found) else "(nothing)"
            mark = "=" if place < len(pairs) and place not in wrong else "≠"
            lines.append(f"  {place + 1}. {mark} {got}")
            if mark == "≠":
                lines.append(f"       expected {wanted[place]!r}" if place < len(wanted) else "       nothing expected")
        raise AssertionError("The jobs sent are not those expected, in order:\n" + "\n".join(lines))

    def assert_fifo(self, queue: str) -> None:
        """See :func:`assert_fifo`."""
        assert_fifo(queue, using=self.using)

    def race(self, n: int, *functions: Callable[[], Any]) -> list[Any]:
        """See :func:`race`."""
        return race(n, *functions, using=self.using)

    def _jobs(self) -> Any:
        return Job.objects.using(self.using)

    def _sent(self) -> list[Job]:
        return list(self._jobs().filter(seq__gt=self._since, source_id=None).order_by("seq"))


def perform(handler: Any, data: Any = None, *, attempt: int = 1, **columns: Any) -> Any:
    """Call a handler or a task as a worker would. Its exceptions are raised, and nothing is stored.

    The data and the returned value are converted to JSON and back, as in a worker. ``columns`` are columns of the job
    in the context of the handler.
    """
    known = _handler(handler)
    check_expected(columns)
    settings = get_settings()
    text = encode(data, max_bytes=settings.MAX_DATA_BYTES, max_depth=settings.MAX_DEPTH, encoder=get_encoder())
    job = _running(known, decode(text), attempt, columns)
    context = JobContext(job) if known.takes_context else None
    output = async_to_sync(awaited)(known, job, context) if known.is_async else known.call(job, context)
    return decode(clean_output(output, max_bytes=settings.MAX_OUTPUT_BYTES)[0])


def _running(handler: Handler[..., Any, Any], data: Any, attempt: int, columns: Mapping[str, Any]) -> Job:
    """An active job that is not stored."""
    now = timezone.now()
    values: dict[str, Any] = {field.attname: None for field in Job._meta.concrete_fields}
    values |= {"id": uuid7(), "queue_id": handler.queue, "name": handler.name, "data": data, "attempt": attempt}
    values |= {"state": JobState.ACTIVE.value, "priority": 0, "assignee": WORKER, "attempts": [], "error": ""}
    values |= {
        "created_at": now,
        "started_at": now,
        "assigned_at": now,
        "singleton_key": "",
        "group_key": "",
        "tags": [],
    }
    values |= {"retry_count": attempt - 1, **columns}
    return Job.from_row(database(None), list(values), list(values.values()))


def _handler(target: Any) -> Handler[..., Any, Any]:
    if isinstance(target, Handler):
        return target
    path = getattr(target, "module_path", None)  # of a task
    found = handlers.find("", path) if isinstance(path, str) else None
    if found is None:
        raise InvalidOption("handler", f"expected a function decorated with @job or @task, got {target!r:.80}")
    return found


def _meant(target: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
    check_expected(expected)
    if target is None:
        return dict(expected)
    if isinstance(target, str | Queue):
        return {"queue_id": str(target), **expected}
    return {"name": _handler(target).name, **expected}


def _told(expected: Mapping[str, Any]) -> str:
    names = {"queue_id": "queue", "name": "handler"}
    return ", ".join(f"{names.get(name, name)} {value!r}" for name, value in expected.items()) or "anything"


def _raise(attempt: Attempt, reraise: bool) -> None:
    ending = attempt.ending
    if reraise and isinstance(ending, Failed):
        raise ending.error if isinstance(ending.error, BaseException) else AssertionError(str(ending.error))


def _checked(mode: object) -> Mode:
    if mode not in get_args(Mode):
        raise InvalidOption("mode", f"expected {', '.join(map(repr, get_args(Mode)))}, got {mode!r:.40}")
    return mode  # type: ignore[return-value]
