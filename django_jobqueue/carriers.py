"""Carriers: values besides the data that go from the sender of a job to its handler, such as the id of a request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .conf import get_settings
from .log_texts import error_line

if TYPE_CHECKING:
    from .models import Job

logger = logging.getLogger("django_jobqueue")


class Outgoing(Protocol):
    """A job before it is stored, with the fields that carriers may read."""

    id: UUID
    name: str
    singleton_key: str
    group_key: str
    priority: int
    tags: list[str]
    carried: str | None


class Carrier(Protocol):
    """Carries a value with each job. Name the class in ``JOBQUEUE["CARRY"]``."""

    name: str  # the key of its value, which is stored as JSON with the job

    def sending(self, queue: str, jobs: Sequence[Outgoing]) -> AbstractContextManager[Any]:
        """A context manager around storing jobs. Its value is stored with them, unless it is ``None``."""

    def running(self, job: Job, value: Any) -> AbstractContextManager[Any]:
        """A context manager around every run of a handler. ``value`` is the value that the job carries, or ``None``."""

    def flush(self) -> None:
        """Called when a worker process ends: write out all that is buffered."""


# ---------------------------------------------------------------------------------------------- the id of the request

_request_id: ContextVar[str | None] = ContextVar("jobqueue_request_id", default=None)


def get_request_id() -> str | None:
    """The id of the current request, or of the request that sent the running job."""
    return _request_id.get()


@contextmanager
def request_id(value: str | None) -> Iterator[None]:
    """Jobs that are sent in this block carry this id."""
    token = _request_id.set(value)
    try:
        yield
    finally:
        _request_id.reset(token)


class RequestId:
    """Carries the id that :class:`django_jobqueue.middleware.RequestIdMiddleware` or :func:`request_id` set."""

    name = "request_id"

    def sending(self, queue: str, jobs: Sequence[Outgoing]) -> AbstractContextManager[str | None]:
        return nullcontext(get_request_id())

    def running(self, job: Job, value: Any) -> AbstractContextManager[None]:
        return request_id(value if isinstance(value, str) else None)

    def flush(self) -> None:
        pass


class RequestIdFilter(logging.Filter):
    """Adds ``request_id`` to every log record, for formatters."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "request_id"):
            record.request_id = get_request_id() or "-"
        return True


# ------------------------------------------------------------------------------------------------------- all carriers


@cache
def carriers() -> tuple[Carrier, ...]:
    """The carriers that the settings name. Raises ``ImproperlyConfigured`` if a class cannot be imported or used."""
    return imported(get_settings().CARRY)


def imported(paths: Sequence[str]) -> tuple[Carrier, ...]:
    return tuple(map(_made, paths))


def _made(path: str) -> Carrier:
    try:
        made: Carrier = import_string(path)()
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(f"JOBQUEUE['CARRY']: {path!r} cannot be imported or created: {error}.") from error
    missing = [name for name in ("name", "sending", "running", "flush") if not hasattr(made, name)]
    if missing:
        raise ImproperlyConfigured(f"JOBQUEUE['CARRY']: {path!r} is not a carrier: it has no {', '.join(missing)}.")
    return made


_NOTHING = nullcontext()


def loading(queue: str, jobs: Sequence[Outgoing]) -> AbstractContextManager[Any]:
    """A context manager around storing these jobs: adds the values that they carry."""
    return _loading(queue, jobs) if get_settings().CARRY else _NOTHING


@contextmanager
def _loading(queue: str, jobs: Sequence[Outgoing]) -> Iterator[None]:
    with ExitStack() as stack:
        cargo = {}
        for carrier in carriers():
            value = _entered(stack, carrier, lambda one=carrier: one.sending(queue, jobs))  # type: ignore[misc]
            if value is not None:
                cargo[carrier.name] = value
        if cargo:
            text = json.dumps(cargo)
            for job in jobs:
                job.carried = text
        yield


Around = Callable[["Job"], AbstractContextManager[Any]]


def around(inner: Around | None) -> Around | None:
    """The context managers around every run: the carriers, and inside them ``inner``. ``None`` if there are none."""
    if not get_settings().CARRY:
        return inner
    all_carriers = carriers()

    @contextmanager
    def unloading(job: Job) -> Iterator[None]:
        cargo = job.carried if isinstance(job.carried, dict) else {}
        with ExitStack() as stack:
            for carrier in all_carriers:
                value = cargo.get(carrier.name)
                _entered(stack, carrier, lambda one=carrier, value=value: one.running(job, value))  # type: ignore[misc]
            if inner is not None:
                stack.enter_context(inner(job))
            yield

    return unloading


def _entered(stack: ExitStack, carrier: Carrier, make: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Enter a carrier. If it fails it is logged, because jobs must be sent and run without it."""
    try:
        return stack.enter_context(make())
    except Exception as error:
        logger.exception(
            "carrier failed: %s: %s; jobs are sent and run without it",
            carrier.name,
            error_line(error),
            extra={"carrier": carrier.name, "error": error_line(error)},
        )
        return None


def flush() -> None:
    """Flush all carriers, because the worker process ends."""
    for carrier in carriers():
        try:
            carrier.flush()
        except Exception as error:
            logger.exception(
                "carrier failed to flush: %s: %s",
                carrier.name,
                error_line(error),
                extra={"carrier": carrier.name, "error": error_line(error)},
            )


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBQUEUE":
        carriers.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue_forget_carriers")
