"""Tasks with the options of jobs: keys, tags, retries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from ..key_functions import KEYS, KeyFunction
from ..send_options import JobOptions, Key, Seconds, closest
from .api import Task, TaskResult

if TYPE_CHECKING:
    from .backend import JobQueueBackend


class Unset(Enum):
    """The value of options that are not given: the queue decides. ``None`` is a value of its own (no limit)."""

    UNSET = "unset"


UNSET: Literal[Unset.UNSET] = Unset.UNSET
Call = Mapping[str, Any] | Sequence[Any]


class TaskOptions(JobOptions, total=False):
    """The options of tasks that only ``JobQueueTask`` has."""

    singleton_key: Key
    group_key: Key
    tags: Iterable[str]
    throttle_seconds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueueTask(Task):  # type: ignore[type-arg]
    """The class of tasks that ``@task`` declares. Its options are those of :func:`django_jobqueue.services.send`.

    Keys may be functions of the arguments. ``@task`` in Django 6.0 takes none of these options; ``using()`` does.
    """

    singleton_key: Key = None
    group_key: Key = None
    tags: Iterable[str] = ()
    throttle_seconds: int | None = None
    retry_limit: int | Unset | None = UNSET
    retry_delay: Seconds | Unset = UNSET
    retry_backoff: bool | Unset = UNSET
    retry_delay_max: Seconds | Unset | None = UNSET
    expire_in_seconds: Seconds | Unset = UNSET
    heartbeat_seconds: Seconds | Unset | None = UNSET
    retention_seconds: Seconds | Unset = UNSET
    delete_after_seconds: Seconds | Unset = UNSET
    delete_failed_after_seconds: Seconds | Unset = UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.tags, str):
            object.__setattr__(self, "tags", tuple(self.tags))  # a tuple, so that a task can be hashed
        Task.__post_init__(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Self:
        """The same task with other options. Raises ``TypeError`` for an unknown option."""
        for name in options:
            if name not in _JOB_OPTIONS:
                raise TypeError(f"using() has no option {name!r}. {closest(name, (*_OF_USING, *_JOB_OPTIONS))}")
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None}, **options)

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[Any]]:
        """Store many jobs at once, all or none. A call is a dict of keyword arguments or a list of positional ones."""
        backend: JobQueueBackend = self.get_backend()  # type: ignore[assignment]
        return backend.enqueue_many(self, calls)

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TaskResult[Any]]:
        backend: JobQueueBackend = self.get_backend()  # type: ignore[assignment]
        return await backend.aenqueue_many(self, calls)


_OF_USING = ("priority", "queue_name", "run_after", "backend")
_OF_EVERY_TASK = {field.name for field in fields(Task)}
_JOB_OPTIONS = tuple(field.name for field in fields(JobQueueTask) if field.name not in _OF_EVERY_TASK)


def options_of(task: Task[..., Any]) -> dict[str, Any]:
    """The options of a task that were given and that only ``JobQueueTask`` has."""
    given = ((name, getattr(task, name, UNSET)) for name in _JOB_OPTIONS)
    return {name: value for name, value in given if value is not UNSET}


def key_functions(task: Task[..., Any]) -> dict[str, KeyFunction]:
    """The keys of a task that are functions. Raises ``InvalidOption`` if one cannot be called."""
    functions = {name: key for name in KEYS if callable(key := getattr(task, name, None))}
    if not functions:
        return {}
    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return {name: KeyFunction(function, name, signature) for name, function in functions.items()}


if TYPE_CHECKING:  # what Django's decorator returns if the backend is JobQueueBackend

    @overload
    def task(function: Callable[..., Any], /) -> JobQueueTask: ...
    @overload
    def task(
        *,
        priority: int = 0,
        queue_name: str = "default",
        backend: str = "default",
        takes_context: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Callable[[Callable[..., Any]], JobQueueTask]: ...
    def task(function: Any = None, /, **options: Any) -> Any: ...
