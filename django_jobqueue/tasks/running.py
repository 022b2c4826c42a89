"""Running tasks: each is the handler of the jobs that carry its path as their name."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps

from .. import handlers
from ..handlers import Handler, JobContext
from ..log_texts import error_line, one_line
from ..models import Job
from ..services import Failure
from ..signals import job_finished
from .api import Task, TaskContext, TaskResult, normalize_json, task_backends, task_finished, task_started
from .backend import JobQueueBackend
from .results import data_of, running_result, successful_result

logger = logging.getLogger("django_jobqueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskContext(TaskContext):
    """What a task with ``takes_context=True`` gets; ``job_context`` has what handlers have: progress, cancellation."""

    job_context: JobContext


class TaskHandler(Handler[..., Any]):
    """Calls a task's function as a job says, and tells Django's signals."""

    named_only = True  # other jobs of its queue, which name no handler, do not come to it

    def __init__(self, task: Task[..., Any], backend: JobQueueBackend) -> None:
        super().__init__(
            task.func,
            queue=task.queue_name,
            name=task.module_path,
            takes_context=task.takes_context,
            unpack=False,
        )
        self.task, self.backend = task, backend
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
            await sync_to_async(job.refresh_from_db)(fields=["attempts", "error"])  # of the attempts before
        result = running_result(job, self.task, self.backend.alias)
        await task_started.asend_robust(type(self.backend), task_result=result)
        args, kwargs = _call(result, context)
        return self._kept(job, await self.function(*args, **kwargs))

    def _kept(self, job: Job, value: Any) -> Any:
        """What it returned, which must be JSON as Django's tasks demand; kept for whoever hears that it finished."""
        job.output = normalize_json(value)
        return job.output


def _call(result: TaskResult[Any], context: JobContext | None) -> tuple[list[Any], dict[str, Any]]:
    first = [] if context is None else [JobTaskContext(task_result=result, job_context=context)]
    return [*first, *result.args], result.kwargs


def remember(task: Task[..., Any], backend: JobQueueBackend) -> None:
    """Every task that is made for our backend is a handler; the first of a path is the one that was declared."""
    if handlers.known(task.module_path) is None:
        handlers.register(TaskHandler(task, backend))


def handler_at(path: str) -> Handler[..., Any] | None:
    """The handler of a task that is declared in a module nobody has imported yet."""
    task = task_at(path)
    backend = None if task is None else backend_of(task)
    if task is None or backend is None:
        return None
    remember(task, backend)
    return handlers.known(path)


def task_at(path: str) -> Task[..., Any] | None:
    """The task of that path; imported only from an installed app, because names of jobs come from the database."""
    if apps.get_containing_app_config(path) is None:
        return None
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(import_module(module), attribute, None)
    except Exception as error:  # whatever a project's module raises
        logger.warning(
            "module of a task cannot be imported: %s: %s",
            one_line(path),
            error_line(error),
            extra={"path": path, "error": repr(error)},
        )
        return None
    return found if isinstance(found, Task) else None


def backend_of(task: Task[..., Any]) -> JobQueueBackend | None:
    """The backend it was declared for; if that is another's, so that ``using(backend=…)`` chose ours, our first."""
    ours = [one for one in (task.get_backend(), *task_backends.all()) if isinstance(one, JobQueueBackend)]
    return ours[0] if ours else None


def _tell_finished(
    sender: Any, *, job: Job, ending: str, error: object, failure: Failure | None, **kwargs: Any
) -> None:
    """A worker has recorded the end of an attempt; the task is finished unless another follows."""
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
            raise error  # receivers find it in sys.exc_info(), as Django's own logging does
    except BaseException:
        task_finished.send_robust(type(backend), task_result=result)
    else:
        task_finished.send_robust(type(backend), task_result=result)


job_finished.connect(_tell_finished, dispatch_uid="jobqueue_task_finished")
