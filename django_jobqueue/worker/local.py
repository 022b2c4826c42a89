"""A worker in threads of the calling process: for scripts, notebooks and tests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ..conf import get_settings
from ..engine.databases import database
from ..engine.pools import own_connection
from ..engine.queues import check_exists
from ..exceptions import InvalidOption
from ..grouping import Grouping
from ..handlers import Handler, autodiscover
from ..identifiers import uuid7
from ..options import check_grouping, check_int, check_seconds
from ..queue_order import QueueOrder
from ..text import check_tags
from .child import Child
from .claims import WorkerIdentity
from .housekeeper import Housekeeper, WatchedChild
from .messages import ChildEnded, ChildLost, Report, StopRequested
from .options import WorkerOptions
from .slots import Slots

LONGEST_POLL = 3600
MOST_CONCURRENCY = 1000


def work(
    queue: str | Iterable[str] | Mapping[str, int | None] | None = None,
    handler: Callable[..., Any] | None = None,
    *,
    tags: Iterable[str] = (),
    grouping: Grouping | str | None = None,
    concurrency: int | None = None,
    queue_order: QueueOrder | str = QueueOrder.FAIR,
    batch_size: int | None = None,
    poll_seconds: float | None = None,
    name: str | None = None,
    schedules: bool = False,
    using: str | None = None,
) -> LocalWorker:
    """Start a worker for one or more queues in threads of this process. Call its ``stop()``, or use it in a ``with``.

    All jobs of these queues run in ``handler``; without it, in the handlers that ``@job`` declared. Without a queue, it
    serves all that a plain ``runjobs`` serves. With ``grouping``, standard queues are read by group, and the jobs of a
    group run one after another. A mapping gives queues threads of their own: with ``{"mails": 4, "other": None}`` at
    most four jobs of ``mails`` run at once, beside those of the other queues. ``queue_order`` is ``"fair"``,
    ``"strict"`` or ``"weighted"``, as for ``manage.py runjobs``.

    A handler that never returns cannot be ended in a thread: for that use ``manage.py runjobs``, which has processes.
    Raises ``QueueNotFound`` and ``InvalidOption``.
    """
    using = database(using)
    queues = () if queue is None else (queue,) if isinstance(queue, str) else tuple(queue)
    own = _own_threads(queue) if isinstance(queue, Mapping) else {}
    for queue_name in queues:
        check_exists(queue_name, using)
    if handler is not None and not callable(handler):
        raise InvalidOption("handler", f"expected a function, got {type(handler).__name__}")
    if handler is not None and not queues:
        raise InvalidOption("queue", "a worker with a handler needs the name of a queue")
    if not queues:
        autodiscover()
    options = WorkerOptions.build(
        queues=queues,
        own=own,
        queue_order=_order(queue_order),
        tags=tuple(check_tags(tags)) if tags else (),
        grouping=None if grouping is None else check_grouping(grouping).value,
        concurrency=None
        if concurrency is None
        else check_int(concurrency, option="concurrency", minimum=1, maximum=MOST_CONCURRENCY),
        name=name,
        schedules=schedules,
        using=using,
    )
    if problem := options.problem():
        raise InvalidOption("concurrency", problem)
    overrides: dict[str, Any] = {}
    if batch_size is not None:
        overrides["BATCH_SIZE"] = check_int(batch_size, option="batch_size", minimum=1, maximum=10_000)
    if poll_seconds is not None:
        overrides["POLL_SECONDS"] = check_seconds(
            poll_seconds, option="poll_seconds", minimum=0.01, maximum=LONGEST_POLL
        )
    chosen = handler if handler is None or isinstance(handler, Handler) else _as_handler(handler, queues[0])
    return LocalWorker(options, chosen, overrides).start()


def _own_threads(queues: Mapping[str, int | None]) -> dict[str, int]:
    return {
        name: check_int(number, option=f"queue[{name!r}]", minimum=1, maximum=MOST_CONCURRENCY)
        for name, number in queues.items()
        if number is not None
    }


def _order(value: QueueOrder | str) -> QueueOrder:
    try:
        return QueueOrder(value)
    except ValueError:
        known = ", ".join(QueueOrder)
        raise InvalidOption("queue_order", f"expected one of {known}, got {value!r}") from None


def _as_handler(function: Callable[..., Any], queue: str) -> Handler[..., Any, Any]:
    return Handler(function, queue=queue, name=f"{function.__module__}.{function.__qualname__}")


class LocalWorker:
    """A child and its housekeeping in threads of the calling process."""

    def __init__(
        self,
        options: WorkerOptions,
        handler: Handler[..., Any, Any] | None = None,
        overrides: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        settings = replace(get_settings(), **overrides)
        self.name, self.incarnation = options.name, uuid7()
        self.slots = slots = Slots(options.slots(settings))
        identity = WorkerIdentity(self.name, self.incarnation, options.using)
        self.child = Child(identity, options, slots, settings=settings, handler=handler)
        self.housekeeper = Housekeeper(options, report=self._handle_report)
        watched = WatchedChild(self.incarnation, self.name, os.getpid(), slots, options.served_queues())
        self.housekeeper.add(watched)
        self.exit_code: int | None = None  # of the child, when it works no more
        self.was_asked_to_stop = False  # by an operator
        self._thread = threading.Thread(target=self._run_child, name="jobqueue-worker", daemon=True)
        self._housekeeping = threading.Thread(target=self.housekeeper.run, name="jobqueue-housekeeper", daemon=True)

    def start(self) -> Self:
        self._housekeeping.start()
        self._thread.start()
        return self

    def _run_child(self) -> None:
        own_connection(self.child.identity.using, "child", self.name)
        self.exit_code = self.child.run()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it works no more, because it was told to stop or has nothing to do. Whether that is so."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop gracefully: running jobs may end within the grace period. Whether all has ended within ``timeout``."""
        began = time.monotonic()
        self.child.stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self.child.listener is not None:
            self.child.listener.join(timeout)
        if self.child.executor.loop is not None:
            self.child.executor.loop.join(timeout)
        self.housekeeper.recover(ChildEnded(self.incarnation, self.name, "has stopped"))
        self.housekeeper.finish()
        self._housekeeping.join(None if timeout is None else max(0.0, timeout - (time.monotonic() - began)))
        return not self._housekeeping.is_alive()

    def _handle_report(self, report: Report) -> None:
        """Called in the thread of the housekeeper."""
        if isinstance(report, ChildLost):
            self.child.stop()
        elif isinstance(report, StopRequested):
            self.was_asked_to_stop = True
            # In another thread, because stopping waits for the end of this one.
            threading.Thread(target=self.stop, name="jobqueue-stopping", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
