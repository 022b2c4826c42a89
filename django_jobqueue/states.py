"""The states of a job, the named sets of states, and the only list of transitions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from django.db import models
from django.utils.translation import gettext_lazy as _


class JobState(models.TextChoices):
    CREATED = "created", _("created")  # waiting for its first attempt
    RETRY = "retry", _("retry")  # an attempt ended, waiting for the next
    UNKNOWN_RETRY = "unknown_retry", _("unknown retry")  # its worker was lost, the outcome is not known
    ACTIVE = "active", _("active")  # a worker holds the claim
    CANCELLING = "cancelling", _("cancelling")  # cancellation was requested, the handler may still run
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")  # attempts used up
    EXPIRED = "expired", _("expired")  # attempts used up, the last one by its time limit
    CANCELLED = "cancelled", _("cancelled")  # ended before it ever started
    STOPPED = "stopped", _("stopped")  # ended after it had started
    UNKNOWN_STOPPED = "unknown_stopped", _("unknown stopped")  # cancelled, its outcome is not known


class Hold(models.TextChoices):
    """Why a waiting job is not fetchable."""

    UNTIL = "until", _("until its time")
    LANE = "lane", _("another job of its key runs first")


class FailureReason(models.TextChoices):
    """Why the last attempt, or the whole job, ended without success."""

    ERROR = "error", _("the handler failed")
    EXPIRED = "expired", _("it took longer than allowed")
    HEARTBEAT = "heartbeat", _("its heartbeat stopped")
    WORKER_LOST = "worker_lost", _("its worker was lost")
    CRASH_LOOP = "crash_loop", _("it crashed its worker too often")
    EXHAUSTED = "exhausted", _("attempts used up, skipped by its queue")
    RETRY_TAKEN = "retry_taken", _("another job of its key already waits for a retry")
    NO_HANDLER = "no_handler", _("no handler of that name")
    CANCELLED = "cancelled", _("cancelled")
    SKIPPED = "skipped", _("skipped by an operator")
    RETURNED = "returned", _("returned to the queue before it ended")


# In the history of a job, not in its reason: its worker lacked the handler and gave it back.
UNHANDLED = "unhandled"

ELIGIBLE = frozenset({JobState.CREATED, JobState.RETRY, JobState.UNKNOWN_RETRY})
RETRYING = frozenset({JobState.RETRY, JobState.UNKNOWN_RETRY})
RUNNING = frozenset({JobState.ACTIVE, JobState.CANCELLING})
DEAD = frozenset({JobState.FAILED, JobState.EXPIRED})
BLOCKING = RETRYING | RUNNING | DEAD  # they block an ordered key
FINAL = DEAD | {JobState.COMPLETED, JobState.CANCELLED, JobState.STOPPED, JobState.UNKNOWN_STOPPED}
OCCUPIED = ELIGIBLE | RUNNING  # unfinished

_S = JobState
FOLLOWS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        _S.CREATED: frozenset({_S.ACTIVE, _S.CANCELLED}),
        _S.RETRY: frozenset({_S.ACTIVE, _S.STOPPED}),
        _S.UNKNOWN_RETRY: frozenset(
            {_S.ACTIVE, _S.COMPLETED, _S.RETRY, _S.FAILED, _S.EXPIRED, _S.STOPPED, _S.UNKNOWN_STOPPED}
        ),
        _S.ACTIVE: frozenset(
            {
                _S.COMPLETED,
                _S.RETRY,
                _S.UNKNOWN_RETRY,
                _S.FAILED,
                _S.EXPIRED,
                _S.CANCELLING,
                _S.STOPPED,
                _S.UNKNOWN_STOPPED,
            }
        ),
        _S.CANCELLING: frozenset({_S.CANCELLING, _S.COMPLETED, _S.STOPPED, _S.UNKNOWN_STOPPED}),
        _S.FAILED: frozenset({_S.RETRY, _S.STOPPED}),
        _S.EXPIRED: frozenset({_S.RETRY, _S.STOPPED}),
        _S.COMPLETED: frozenset(),
        _S.CANCELLED: frozenset(),
        _S.STOPPED: frozenset(),
        _S.UNKNOWN_STOPPED: frozenset({_S.COMPLETED}),
    }
)


@cache
def leads_to(target: JobState) -> frozenset[JobState]:
    """The states from which ``target`` can be reached."""
    return frozenset(state for state, following in FOLLOWS.items() if target in following)


FAILABLE = leads_to(JobState.FAILED)  # attempts of jobs in these states may fail
STOPPABLE = leads_to(JobState.STOPPED) - DEAD - {JobState.RETRY}  # a worker may stop jobs in these states
RETRIABLE = leads_to(JobState.RETRY) & FINAL  # an operator may give these jobs another attempt
SKIPPABLE = leads_to(JobState.STOPPED) - RUNNING  # an operator may end these jobs without another attempt
REDRIVABLE = ELIGIBLE | DEAD  # an operator may send these dead letters back to the queue they came from
