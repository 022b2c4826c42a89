"""The backend of Django's tasks API that stores tasks as jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import connections
from django.utils import timezone

from .. import services
from ..exceptions import DuplicateJob, InvalidOption, JobNotFound, JobQueueError
from ..key_functions import KEYS
from ..models import Job
from ..services.inspect.jobs import job_database
from ..services.send import check_options
from ..text import check_queue_name
from .api import BaseTaskBackend, InvalidTask, Task, TaskResult, TaskResultDoesNotExist, normalize_json, task_enqueued
from .declaring import Call, JobQueueTask, key_functions, options_of
from .results import data_of, result_of

OPTIONS = ("database",)


class JobQueueBackend(BaseTaskBackend):
    """``TASKS = {"default": {"BACKEND": "django_jobqueue.tasks.JobQueueBackend"}}``."""

    task_class = JobQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.using: str | None = self.options.get("database")

    def validate_task(self, task: Task[..., Any]) -> None:
        """Check the task and make it known to workers: every task is validated when it is declared."""
        from .running import remember

        super().validate_task(task)
        options = options_of(task)
        try:
            fixed = {name: key for name in KEYS if not callable(key := options.pop(name, None))}
            check_options(options, **fixed)
            key_functions(task)
        except JobQueueError as error:
            raise InvalidTask(str(error)) from error
        remember(task, self)

    # ----------------------------------------------------------------------------------------------------- sending

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Store a job in the caller's transaction.

        If the policy of the queue refuses it, the result is that of the existing job. Raises ``DuplicateJob`` if that
        job does not belong to a task.
        """
        self.validate_task(task)
        item = self._item(task, args, kwargs)
        data = item.pop("data")
        job = services.send(task.queue_name, data, using=self.using, **item)
        if job is None:
            return self._existing_result(task, data, item)
        result = result_of(job, task, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _existing_result(self, task: Task[..., Any], data: Any, item: dict[str, Any]) -> TaskResult[Any]:
        job = services.send(task.queue_name, data, using=self.using, on_duplicate="return", **item)
        found = self._task_of(job)
        if found is None:
            raise DuplicateJob(task.queue_name, ["its place in the queue is taken"])
        return result_of(services.get_job(job.pk, using=self.using), found, self.alias)

    def enqueue_many(self, task: Task[..., Any], calls: Iterable[Call]) -> list[TaskResult[Any]]:
        """Store many jobs at once, all or none. A call is a dict of keyword arguments or a list of positional ones."""
        self.validate_task(task)
        items = [self._item(task, *_call(call)) for call in calls]
        ids = services.send_many(task.queue_name, items, using=self.using)
        jobs = Job.objects.using(job_database(self.using)).in_queue(task.queue_name).in_bulk([id for id in ids if id])
        results = [result_of(jobs[id], task, self.alias) for id in ids if id]
        for result in results:
            task_enqueued.send(type(self), task_result=result)
        return results

    async def aenqueue_many(self, task: Task[..., Any], calls: Iterable[Call]) -> list[TaskResult[Any]]:
        return await sync_to_async(self.enqueue_many)(task, calls)

    def _item(self, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        """The item for ``send_many`` that stands for a call."""
        options = options_of(task)
        for name, key in key_functions(task).items():
            options[name] = key.of_call(args, kwargs)
        if task.run_after is not None:
            options["start_after"] = _aware(task.run_after)
        data = data_of(normalize_json(args), normalize_json(kwargs))
        return {"data": data, "name": task.module_path, "priority": task.priority, **options}

    # ----------------------------------------------------------------------------------------------------- results

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result of a job. Raises ``TaskResultDoesNotExist`` if there is none, or it belongs to no task."""
        try:
            job = services.get_job(result_id, using=self.using)
        except (JobNotFound, InvalidOption) as error:
            raise TaskResultDoesNotExist(str(result_id)) from error
        task = self._task_of(job)
        if task is None:
            raise TaskResultDoesNotExist(f"The job {result_id} does not belong to a task.")
        return result_of(job, task, self.alias)

    def _task_of(self, job: Job) -> Task[..., Any] | None:
        from .. import handlers
        from .running import TaskHandler

        handler = handlers.find(job.queue_id, job.name) if job.name else None
        return handler.task if isinstance(handler, TaskHandler) else None

    # ------------------------------------------------------------------------------------------------------ checks

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings of this backend."""
        yield from self._problems()

    def _problems(self) -> Iterator[checks.CheckMessage]:
        where = f"TASKS[{self.alias!r}]"
        for name in sorted(map(str, self.queues)):
            try:
                check_queue_name(name)
            except InvalidOption as error:
                yield _error(f"{where}['QUEUES']: {error.problem}.", error.hint)
        for name in self.options:
            if name not in OPTIONS:
                close = get_close_matches(str(name), OPTIONS, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(OPTIONS)}."
                yield _error(f"{where}['OPTIONS']: there is no option {name!r}.", hint)
        if self.using is not None and self.using not in connections:
            yield _error(
                f"{where}['OPTIONS']['database']: {self.using!r} is not in DATABASES.",
                f"Known are {', '.join(connections)}.",
            )
        elif connections[job_database(self.using)].vendor != "postgresql":
            vendor = connections[job_database(self.using)].vendor
            yield _error(f"{where} would store jobs in a database that is {vendor}, not PostgreSQL.", "Name another.")


def _error(message: str, hint: str) -> checks.Error:
    return checks.Error(message, hint=hint or None, id="jobqueue.E021")


def _call(call: Call) -> tuple[Iterable[Any], Mapping[str, Any]]:
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, list | tuple):
        return call, {}
    raise InvalidOption(
        "calls", f"expected dicts of keyword arguments or lists of positional ones, got {type(call).__name__}"
    )


def _aware(moment: datetime) -> datetime:
    """A moment with a time zone: without ``USE_TZ``, Django accepts naive datetimes."""
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)
