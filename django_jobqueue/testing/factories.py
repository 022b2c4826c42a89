"""Factories that write rows without the verbs: a job in any state, with the columns that the state implies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from factory.declarations import Sequence, SubFactory
from factory.django import DjangoModelFactory

from ..error_summary import summary_of_text
from ..expressions import StatementTimestamp
from ..models import Job, Queue
from ..options import JOB_OPTIONS
from ..states import DEAD, ELIGIBLE, FINAL, RETRYING, FailureReason, Hold, JobState

WORKER = "worker"
ERROR = "ValueError: it failed"
NEVER_STARTED = {JobState.CREATED, JobState.CANCELLED}
CANCEL_ASKED = {JobState.CANCELLING, JobState.CANCELLED, JobState.STOPPED, JobState.UNKNOWN_STOPPED}


class _RefreshedFactory(DjangoModelFactory[Any]):
    """Refreshes each row from the database, which fills in some columns."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[Any], *args: Any, **kwargs: Any) -> Any:
        made = super()._create(model_class, *args, **kwargs)
        made.refresh_from_db()
        return made


class QueueFactory(_RefreshedFactory):
    """``QueueFactory(policy="stately", retry_limit=0)``; with ``partition=True`` use ``services.create_queue``."""

    class Meta:
        model = Queue

    name = Sequence(lambda number: f"queue-{number}")

    if TYPE_CHECKING:

        def __new__(cls, **kwargs: Any) -> Queue: ...  # type: ignore[misc]


class JobFactory(_RefreshedFactory):
    """``JobFactory(queue=queue, state=JobState.FAILED, singleton_key="a")``: a job with the columns of this state.

    Columns that are given take precedence. A lane hold is never implied: pass ``hold=Hold.LANE``.
    """

    class Meta:
        model = Job

    queue = SubFactory(QueueFactory)
    state = JobState.CREATED

    if TYPE_CHECKING:

        def __new__(cls, **kwargs: Any) -> Job: ...  # type: ignore[misc]

    @classmethod
    def _adjust_kwargs(cls, **kwargs: Any) -> dict[str, Any]:
        queue: Queue = kwargs["queue"]
        values = {name: getattr(queue, name) for name in JOB_OPTIONS} | kwargs
        if "error" in values:
            values.setdefault("error_summary", summary_of_text(values["error"]) or None)
        values = _implied(JobState(kwargs["state"]), values) | values
        if "singleton_key" not in values and queue.is_ordered:
            values["singleton_key"] = "key"
        if "delete_at" not in values:
            values["delete_at"] = _delete_at(values, ordered=queue.is_ordered)
        return values | {"policy": queue.policy}


def _implied(state: JobState, values: Mapping[str, Any]) -> dict[str, Any]:
    now, limit = StatementTimestamp(), values["retry_limit"]
    implied: dict[str, Any] = {}
    start_after = values.get("start_after")
    if state in ELIGIBLE and isinstance(start_after, datetime) and start_after > timezone.now():
        implied |= {"hold": Hold.UNTIL, "first_start_after": start_after if state == JobState.CREATED else None}
    if state in DEAD:
        implied["retry_count"] = limit or 0
    elif state in RETRYING:
        implied["retry_count"] = 1 if limit is None else min(1, limit)
    count = values.get("retry_count", implied.get("retry_count", 0))
    if count:
        implied["last_retry_at"] = now
    if state not in NEVER_STARTED:
        implied |= _started(state, values, count)
    if state in CANCEL_ASKED:
        implied |= {"cancel_requested_at": now, "reason": FailureReason.CANCELLED}
    if state in FINAL:
        implied["finalized_at"] = now
    if state == JobState.COMPLETED:
        implied["output"] = {"done": True}
    return implied


def _started(state: JobState, values: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The columns of a job that a worker has started; in a state after a failure, its last attempt failed."""
    now = StatementTimestamp()
    failed = RETRYING | DEAD
    attempt = values.get("attempt", count + (0 if state in RETRYING and count else 1))
    started: dict[str, Any] = {
        "attempt": attempt,
        "assignee": WORKER,
        "assigned_at": now,
        "started_at": now,
        "expire_at": now + timedelta(seconds=values["expire_in_seconds"]),
    }
    if values["heartbeat_seconds"]:
        started["heartbeat_at"] = now
    if state in failed:
        reason = FailureReason.EXPIRED if state == JobState.EXPIRED else FailureReason.ERROR
        error = {"error": ERROR, "error_summary": ERROR}
        entry = {"attempt": attempt, "worker": WORKER, "outcome": reason.value, **error, "fingerprint": ""}
        started |= {"attempt_finished_at": now, **error, "reason": reason, "attempts": [entry]}
    return started


def _delete_at(values: Mapping[str, Any], *, ordered: bool) -> Any:
    """The time that retention sets; none for a row that blocks an ordered key."""
    state = values["state"]
    if state not in FINAL or (state in DEAD and ordered):
        return None
    seconds = values["delete_failed_after_seconds" if state in DEAD else "delete_after_seconds"]
    return values["finalized_at"] + timedelta(seconds=seconds) if seconds else None
