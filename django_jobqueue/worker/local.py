"""A worker inside the calling process: for scripts, notebooks and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from ..conf import get_settings
from ..encoding import check_tags
from ..engine.databases import database, own_connection
from ..engine.queues import check_exists
from ..exceptions import InvalidOption
from ..grouping import Grouping
from ..handlers import Handler
from ..identifiers import uuid7
from ..options import check_grouping, check_int, check_seconds
from .child import Child
from .housekeeper import Death, Keeper, Kept
from .options import WorkerOptions
from .slots import Slots

LONGEST_POLL = 3600


def work(
    queue: str | Iterable[str],
    handler: Callable[..., Any] | None = None,
    *,
    tags: Iterable[str] = (),
    grouping: Grouping | str | None = None,
    concurrency: int | None = None,
    batch_size: int | None = None,
    poll_seconds: float | None = None,
    name: str | None = None,
    schedules: bool = False,
    using: str | None = None,
) -> LocalWorker:
    """Start a worker for one or more queues in threads of this process; ``stop()`` it, or use it in a ``with``.

    Every job of them goes to ``handler``; without one, to the handlers that ``@job`` declared. With ``grouping``
    standard queues are read by group, and the jobs of a group run one after another. A handler that
    never returns cannot be ended here: for that it takes processes, so ``manage.py runjobs``. Raises ``QueueNotFound``
    and ``InvalidOption``.
    """
    using = database(using)
    queues = (queue,) if isinstance(queue, str) else tuple(queue)
    for one in queues:
        check_exists(one, using)
    if handler is not None and not callable(handler):
        raise InvalidOption("handler", f"expected a function, got {type(handler).__name__}")
    options = WorkerOptions.build(
        queues=queues,
        tags=tuple(check_tags(tags)) if tags else (),
        grouping=None if grouping is None else check_grouping(grouping).value,
        concurrency=None
        if concurrency is None
        else check_int(concurrency, option="concurrency", minimum=1, maximum=1000),
        name=name,
        schedules=schedules,
        using=using,
    )
    given: dict[str, Any] = {}
    if batch_size is not None:
        given["BATCH_SIZE"] = check_int(batch_size, option="batch_size", minimum=1, maximum=10_000)
    if poll_seconds is not None:
        given["POLL_SECONDS"] = check_seconds(poll_seconds, option="poll_seconds", minimum=0.01, maximum=LONGEST_POLL)
    chosen = handler if handler is None or isinstance(handler, Handler) else _unnamed(handler, queues[0])
    return LocalWorker(options, chosen, given).start()


def _unnamed(function: Callable[..., Any], queue: str) -> Handler[..., Any]:
    return Handler(function, queue=queue, name=f"{function.__module__}.{function.__qualname__}")


class LocalWorker:
    """A child and a keeper as threads of one process."""

    def __init__(self, options: WorkerOptions, handler: Handler[..., Any] | None, given: dict[str, Any]) -> None:
        self.name, self.incarnation = options.name, uuid7()
        slots = Slots(options.concurrency + get_settings().ASYNC_CONCURRENCY)
        self._child = Child(options, self.name, self.incarnation, slots, handler)
        self._child.settings = replace(self._child.settings, **given)
        self._keeper = Keeper(options, lost=self._lost, asked=self._asked, buried=lambda _: None)
        self._keeper.add(Kept(self.incarnation, self.name, 0, slots, list(options.queues)))
        self._thread = threading.Thread(target=self._run_child, name="jobqueue-worker", daemon=True)
        self._keeping = threading.Thread(target=self._keeper.run, name="jobqueue-keeper", daemon=True)

    def start(self) -> Self:
        self._keeping.start()
        self._thread.start()
        return self

    def _run_child(self) -> None:
        own_connection(self._child.using)
        self._child.run()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop gracefully: what runs may end within the grace period. Whether it has ended within ``timeout``."""
        began = time.monotonic()
        self._child.stop()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._child.listener is not None:
            self._child.listener.join(timeout)
        if self._child.executor.loop is not None:
            self._child.executor.loop.join(timeout)
        self._keeper.bury(Death(self.incarnation, self.name, "has stopped"))
        self._keeper.finish()
        self._keeping.join(None if timeout is None else max(0.0, timeout - (time.monotonic() - began)))
        return not self._keeping.is_alive()

    def _asked(self) -> None:
        """Somebody asked it to stop, from elsewhere: beside the keeper, who would otherwise wait for its own end."""
        threading.Thread(target=self.stop, name="jobqueue-stopping", daemon=True).start()

    def _lost(self, incarnation: UUID) -> None:
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
