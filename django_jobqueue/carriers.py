"""What a job carries from its sender to its handler besides its data: the id of a request, a trace."""

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
    """A job that is about to be stored, as far as carriers need to know it."""

    id: UUID
    name: str
    singleton_key: str
    group_key: str
    priority: int
    tags: list[str]
    carried: str | None


class Carrier(Protocol):
    """One thing to carry. Name its class in ``JOBQUEUE["CARRY"]``."""

    name: str  # under which its JSON is stored with the job

    def sending(self, queue: str, jobs: Sequence[Outgoing]) -> AbstractContextManager[Any]:
        """Entered while jobs are stored; what it gives goes with them, unless it is ``None``."""

    def running(self, job: Job, value: Any) -> AbstractContextManager[Any]:
        """Entered around every run of a handler, with what the job carries, or ``None``."""

    def flush(self) -> None:
        """A worker ends: nothing may be lost."""


# ---------------------------------------------------------------------------------------------- the id of the request

_request_id: ContextVar[str | None] = ContextVar("jobqueue_request_id", default=None)


def get_request_id() -> str | None:
    """The id of the request that is being answered, or that led to the job that is being run."""
    return _request_id.get()


@contextmanager
def request_id(value: str | None) -> Iterator[None]:
    """What is sent in here carries this id."""
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
    """Gives every log record a ``request_id``, for formatters."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "request_id"):
            record.request_id = get_request_id() or "-"
        return True


# ------------------------------------------------------------------------------------------------------- all carriers


@cache
def carriers() -> tuple[Carrier, ...]:
    """The carriers that the settings name; ``ImproperlyConfigured`` if one cannot be had."""
    return tuple(map(_made, get_settings().CARRY))


def _made(path: str) -> Carrier:
    try:
        made: Carrier = import_string(path)()
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(f"JOBQUEUE['CARRY']: {path!r} cannot be had: {error}.") from error
    missing = [name for name in ("name", "sending", "running", "flush") if not hasattr(made, name)]
    if missing:
        raise ImproperlyConfigured(f"JOBQUEUE['CARRY']: {path!r} is no carrier: it has no {', '.join(missing)}.")
    return made


_NOTHING = nullcontext()


def loading(queue: str, jobs: Sequence[Outgoing]) -> AbstractContextManager[Any]:
    """Entered while these jobs are stored: gives them what they carry."""
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
    """What to enter around every run, if anything: the carriers, and inside them what the settings name besides."""
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
    """A carrier that fails must not keep jobs from being sent or run."""
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
    """A worker process ends."""
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
