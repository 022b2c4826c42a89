"""How an attempt can end, and what an exception of a handler means for its job."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from django.utils import timezone

from ..handlers import CancelJob, FailForGood, Handler, JobExpired, RetryLater, Snooze
from ..models import Job
from ..options import YEAR, check_seconds
from ..states import FailureReason
from ..tracebacks import without_our_frames


class Completed(NamedTuple):
    """The handler returned."""

    output: Any


class Failed(NamedTuple):
    error: object
    retry_after: float | datetime | None = None
    for_good: bool = False
    reason: FailureReason = FailureReason.ERROR
    disconnected_at: float | None = None  # by the monotonic clock, if it failed because a database connection was lost


class Stopped(NamedTuple):
    """The job was cancelled, by its handler or by an operator."""

    text: str


class Snoozed(NamedTuple):
    text: str
    delay: float


class Recorded(NamedTuple):
    """An atomic handler: its work and its completion are committed together, or both are lost."""

    lost: bool = False


class NotBegun(NamedTuple):
    """Not begun, because a job ahead of it in its group did not succeed; both were returned to the queue."""


class Late(NamedTuple):
    """Not begun, because its claim must be verified first: it waited long, or the connection was lost."""


Ending = Completed | Failed | Stopped | Snoozed | Recorded | NotBegun | Late
Result = tuple[Job, Ending, float]

SWALLOWED = Failed("JOBQUEUE['AROUND'] swallowed what the handler raised, so that its ending is not known.")


def continues_group(ending: Ending) -> bool:
    """Whether the job has ended, so that the next job of its group may begin."""
    return isinstance(ending, Completed | Stopped) or ending == Recorded()


def ending_for_error(handler: Handler[..., Any, Any], job: Job, error: BaseException) -> Ending:
    """What an exception of a handler means for its job."""
    try:
        ending = _ending_for_error(handler, job, error.with_traceback(without_our_frames(error.__traceback__)))
        if isinstance(ending, Failed) and lost_connection(error):
            return ending._replace(disconnected_at=time.monotonic())
        return ending
    except Exception as problem:  # the exception carries an invalid delay, or its rule is invalid
        return Failed(f"{type(error).__name__} cannot be understood: {type(problem).__name__}: {problem}")


def lost_connection(error: BaseException | None) -> bool:
    """Whether a connection to a database ended, or was refused by a server that starts, stops or is a standby."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
            code = error.sqlstate
            if code is None or code.startswith("08") or code in _SERVER_GONE:
                return True
        error = error.__cause__ or error.__context__
    return False


_SERVER_GONE = {
    "57P01",  # the server was told to stop, or the session was terminated
    "57P02",  # another process of the server crashed
    "57P03",  # the server starts or stops
    "25006",  # read-only: a standby
}


def _ending_for_error(handler: Handler[..., Any, Any], job: Job, error: BaseException) -> Ending:
    if isinstance(error, JobExpired):
        return expired(job)
    if isinstance(error, RetryLater):
        return Failed(error, retry_after=_when(error))
    if isinstance(error, FailForGood):
        return Failed(error, for_good=True)
    if isinstance(error, CancelJob):
        return Stopped(str(error) or "cancelled by its handler")
    if isinstance(error, Snooze):
        return Snoozed(str(error), _delay(error.delay))
    if isinstance(error, SystemExit):
        return Failed(f"SystemExit: the handler called sys.exit({error.code!r})")
    rule = handler.rule_for(error)
    if rule is False:
        return Failed(error, for_good=True)
    return Failed(error, retry_after=None if rule is True else _delay(rule))


def _when(error: RetryLater) -> float | datetime | None:
    """When to try again. A datetime stays a datetime: the seconds until then depend on the clock of the database."""
    if isinstance(error.at, datetime):
        return error.at if timezone.is_aware(error.at) else timezone.make_aware(error.at)
    return None if error.delay is None else _delay(error.delay)


def _delay(seconds: float | timedelta) -> float:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return max(0.0, check_seconds(seconds, option="delay", minimum=-100 * YEAR, maximum=100 * YEAR))


def expired(job: Job) -> Failed:
    text = f"It took longer than the {job.expire_in_seconds} seconds it was allowed."
    return Failed(text, reason=FailureReason.EXPIRED)
