"""Django's own tasks as jobs: the backend, and the names of the tasks API that is installed.

That is ``django.tasks`` in Django 6.0 and later, otherwise the package ``django-tasks``. Workers import this module
when they look for handlers, so importing it must not fail if neither is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from .. import handlers

if TYPE_CHECKING:
    from .api import Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from .backend import JobQueueBackend
    from .declaring import JobQueueTask, task
    from .running import JobTaskContext

__all__ = [
    "JobQueueBackend",
    "JobQueueTask",
    "JobTaskContext",
    "Task",
    "TaskContext",
    "TaskResult",
    "TaskResultStatus",
    "task",
    "task_backends",
]
_PLACES = {"JobQueueBackend": "backend", "JobQueueTask": "declaring", "JobTaskContext": "running"}


def is_available() -> bool:
    """Whether Django or the package ``django-tasks`` provides tasks."""
    return django.VERSION >= (6, 0) or find_spec("django_tasks") is not None


def __getattr__(name: str) -> Any:
    """Import a name when it is first used. Raises ``ImproperlyConfigured`` if tasks or the app are not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not is_available():
        raise ImproperlyConfigured(
            f"Django {django.get_version()} has no tasks: upgrade to 6.0, or pip install 'django-jobqueue[tasks]'."
        )
    if not apps.is_installed("django_jobqueue"):
        raise ImproperlyConfigured("Add 'django_jobqueue' to INSTALLED_APPS: its backend of TASKS stores jobs there.")
    return getattr(import_module(f".{_PLACES.get(name, 'api')}", __name__), name)


def find(name: str) -> handlers.Handler[..., Any, Any] | None:
    """The handler of a job whose name is the path of a task that is not yet imported."""
    if not is_available():
        return None
    from .running import handler_at

    return handler_at(name)


handlers.add_source(find)
