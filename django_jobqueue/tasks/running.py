"""Running tasks: each task is the handler of the jobs whose name is its path."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps

from .. import handlers
from ..handlers import Handler, JobContext
from ..log_texts import error_line, error_text, one_line
from ..models import Job
from ..services import Failure
from ..signals import job_finished
from .api import Task, TaskContext, TaskResult, normalize_json, task_backends, task_finished, task_started
from .backend import JobQueueBackend
from .results import data_of, running_result, successful_result

logger = logging.getLogger("django_jobqueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskContext(TaskContext):
    """The context of a task with ``takes_context=True``; ``job_context`` is that of handlers."""

    job_context: JobContext


class TaskHandler(Handler[..., Any, Any]):
    """Calls the function of a task with the arguments of a job, and sends Django's signals."""

    named_only = True  # jobs of its queue that name no handler do not run in it

    def __init__(self, task: Task[..., Any], backend: JobQueueBackend) -> None:
        super().__init__(
            task.func,
            queue=task.queue_name,
            name=task.module_path,
            takes_context=task.takes_context,
            unpack=False,
        )
        self.task, self.backend = task, backend
        self.positional = tuple(inspect.signature(task.func).parameters)[task.takes_context :]
        self.queues = tuple({task.queue_name, *backend.queues})

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return data_of(normalize_json(args), normalize_json(kwargs))

    def call(self, job: Job, context: JobContext | None) -> Any:
        if self.is_async:
            return self._acall(job, context)
        result = running_result(job, self.task, self.backend.alias)
        task_started.send_robust(type(self.backend), task_result=result)
        args, kwargs = _call(result, context)
        return self._kept(job, self.function(*args, **kwargs))

    async def _acall(self, job: Job, context: JobContext | None) -> Any:
        if job.attempt > 1:
            await sync_to_async(job.refresh_from_db)(fields=["attempts", "error"])  # those of earlier attempts
        result = running_result(job, self.task, self.backend.alias)
        await task_started.asend_robust(type(self.backend), task_result=result)
        args, kwargs = _call(result, context)
        return self._kept(job, await self.function(*args, **kwargs))

    def _kept(self, job: Job, value: Any) -> Any:
        """The output as JSON, as Django's tasks require it. It is kept for receivers of ``task_finished``."""
        job.output = normalize_json(value)
        return job.output


def _call(result: TaskResult[Any], context: JobContext | None) -> tuple[list[Any], dict[str, Any]]:
    first = [] if context is None else [JobTaskContext(task_result=result, job_context=context)]
    return [*first, *result.args], result.kwargs


def remember(task: Task[..., Any], backend: JobQueueBackend) -> None:
    """Register the handler of a task. The first task with a path is the declared one; later ones are its copies."""
    if handlers.known(task.module_path) is None:
        handlers.register(TaskHandler(task, backend))


def handler_at(path: str) -> Handler[..., Any, Any] | None:
    """The handler of a task in a module that is not yet imported."""
    task = task_at(path)
    backend = None if task is None else backend_of(task)
    if task is None or backend is None:
        return None
    remember(task, backend)
    return handlers.known(path)


def task_at(path: str) -> Task[..., Any] | None:
    """The task with this path. Only modules of installed apps are imported: the path comes from the database."""
    if apps.get_containing_app_config(path) is None:
        return None
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # a module may raise anything
        logger.warning(
            "module of a task cannot be imported: %s: %s",
            one_line(path),
            error_line(error),
            extra={"path": path, "error": error_text(error)},
        )
        return None
    return found if isinstance(found, Task) else None


def backend_of(task: Task[..., Any]) -> JobQueueBackend | None:
    """The backend of the task, or the first ``JobQueueBackend`` if ``using(backend=…)`` chose one for this send."""
    ours = [one for one in (task.get_backend(), *task_backends.all()) if isinstance(one, JobQueueBackend)]
    return ours[0] if ours else None


def _send_task_finished(
    sender: Any, *, job: Job, ending: str, error: object, failure: Failure | None, **kwargs: Any
) -> None:
    """Send ``task_finished`` when an attempt has ended and no other follows."""
    handler = handlers.known(job.name)
    if not isinstance(handler, TaskHandler):
        return
    backend = handler.backend
    if ending == "completed":
        result = successful_result(job, handler.task, backend.alias, job.__dict__.get("output"))
    elif ending == "stopped" or (failure is not None and not failure.will_retry):
        result = backend.get_result(str(job.pk))
    else:
        return
    try:
        if isinstance(error, BaseException):
            raise error  # receivers, such as Django's logging, read sys.exc_info()
    except BaseException:
        task_finished.send_robust(type(backend), task_result=result)
    else:
        task_finished.send_robust(type(backend), task_result=result)


job_finished.connect(_send_task_finished, dispatch_uid="jobqueue_task_finished")
