"""Background maintenance: a pass expires, recovers, releases and cleans up, in only one process at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Exists, OuterRef

from . import services
from .engine import sql
from .engine.databases import database, rows
from .engine.recovery import release_due
from .engine.sweeps import bounded
from .engine.transactions import in_transaction, joins
from .expressions import StatementTimestamp
from .identifiers import uuid7
from .log_texts import error_line
from .models import Job, Maintenance, Worker
from .services.maintain import fill_minutes, forget_old_minutes
from .services.operations import advance_operations, forget_old_operations

logger = logging.getLogger("django_jobqueue.maintenance")

KEEP_WORKERS = timedelta(days=1)
OPERATIONS_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of a pass did: how many rows, by queue where that is known."""

    name: str
    done: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    unfinished: bool = False  # its time was over; the next pass continues it

    @property
    def number(self) -> int:
        return sum(self.done.values())


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What a pass did, step by step; ``skipped`` if another process was running it."""

    skipped: bool = False
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def errors(self) -> dict[str, str]:
        """The names of the steps that failed, and their errors."""
        return {step.name: step.error for step in self.steps if step.error}

    def __getitem__(self, name: str) -> Step:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict that JSON can hold."""
        return asdict(self)


class _StepToRun(NamedTuple):
    """A step: its function, how long it may take, and how many rows it may read without changing them."""

    name: str
    work: Callable[[str], dict[str, int]]
    seconds: float = 5.0
    looks: int = 20_000


def maintain(*, every: float = 0.0, using: str | None = None) -> MaintenanceReport:
    """Run a pass: expire, recover, release, check lanes, count, clean up, warn, continue operations, in bounded time.

    A pass runs in only one process at a time. A report says ``skipped`` if another process runs one, or if the last
    pass began less than ``every`` seconds ago. A step that fails is logged, and the other steps run.
    """
    using = database(using)
    holder, began = uuid7(), time.monotonic()
    if not _take(using, holder, every):
        return MaintenanceReport(skipped=True)
    steps: list[Step] = []
    for work in STEPS:
        if not _renew(using, holder):
            logger.warning(
                "maintenance continues in another process: this one stops before the step %s",
                work.name,
                extra={"step": work.name},
            )
            break
        steps.append(_run(using, work))
    report = MaintenanceReport(steps=steps, seconds=round(time.monotonic() - began, 3))
    _return(using, holder, report)
    return report


# ----------------------------------------------------------------------------------------------------- one at a time


def _row(using: str) -> Any:
    return Maintenance.objects.using(using)


def _lease() -> Any:
    return StatementTimestamp() + timedelta(seconds=sql.maintain.LEASE_SECONDS)


def _take(using: str, holder: UUID, every: float) -> bool:
    """Whether this process may run the pass. It does not wait for a locked row: another process is taking the pass."""
    if not _row(using).exists():
        with connections[using].cursor() as cursor:
            cursor.execute(sql.maintain.ENSURE_ROW, [Maintenance.ONLY])

    def take() -> bool:
        if not rows(using, sql.maintain.FREE_PASS, [every]):
            return False
        taken = _row(using).update(holder=holder, lease_until=_lease(), began_at=StatementTimestamp())
        return bool(taken)

    return in_transaction(using, take)


def _renew(using: str, holder: UUID) -> bool:
    return bool(_row(using).filter(holder=holder).update(lease_until=_lease()))


def _return(using: str, holder: UUID, report: MaintenanceReport) -> None:
    mine = _row(using).filter(holder=holder)
    mine.update(holder=None, lease_until=None, ended_at=StatementTimestamp(), report=report.as_dict())


# --------------------------------------------------------------------------------------------------------- the steps


def _run(using: str, step: _StepToRun) -> Step:
    began = time.monotonic()
    places = _row(using).values_list("places", flat=True)[0]
    done, error = {}, ""
    with bounded(step.seconds, looks=step.looks, place=places.get(step.name)) as limits:
        try:
            with transaction.atomic(using=using) if joins(connections[using]) else nullcontext():
                done = step.work(using)
        except Exception as failure:  # any error: the other steps must run
            error = f"{type(failure).__name__}: {failure}".strip()[:500]
            logger.exception(
                "maintenance step failed: %s: %s; the other steps go on",
                step.name,
                error_line(failure),
                extra={"step": step.name, "error": error},
            )
            if not joins(connections[using]):
                connections[using].close_if_unusable_or_obsolete()
    if limits.place != places.get(step.name):
        _row(using).update(places={**places, step.name: limits.place})
    return Step(step.name, done, round(time.monotonic() - began, 3), error, limits.unfinished)


def _recover(using: str) -> dict[str, int]:
    return services.recover_lost(using=using)


def _expire(using: str) -> dict[str, int]:
    return services.expire(using=using)


def _release(using: str) -> dict[str, int]:
    services.release_pending(using=using)
    return release_due(using=using)


def _check_lanes(using: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for lane in services.check_lanes(using=using):
        found[lane.queue] = found.get(lane.queue, 0) + 1
    return found


def _count(using: str) -> dict[str, int]:
    return {"minutes": fill_minutes(using=using)}


def _clean_up(using: str) -> dict[str, int]:
    return services.cleanup(using=using)


def _warn(using: str) -> dict[str, int]:
    return services.warn_backlogs(using=using)


def _forget(using: str) -> dict[str, int]:
    """Delete old rows of workers, slots of schedules, minutes, operations, and staged rows of Spark writes."""
    return {
        "workers": _forget_workers(using),
        "runs": services.forget_old_runs(using=using),
        "minutes": forget_old_minutes(using=using),
        "staged": services.forget_staged(using=using),
        **forget_old_operations(using=using),
    }


def _forget_workers(using: str) -> int:
    """Delete workers that stopped more than a day ago, unless a job is held by one: its row proves that it is lost."""
    held = Job.objects.using(using).running().filter(assignee=OuterRef("name"), incarnation=OuterRef("pk"))
    old = Worker.objects.using(using).filter(stopped_at__lte=StatementTimestamp() - KEEP_WORKERS)
    return old.exclude(Exists(held))._raw_delete(using)


def _continue_operations(using: str) -> dict[str, int]:
    return advance_operations(seconds=OPERATIONS_SECONDS, using=using)


STEPS: tuple[_StepToRun, ...] = (
    _StepToRun("recover", _recover),
    _StepToRun("expire", _expire),
    _StepToRun("release", _release),
    _StepToRun("lanes", _check_lanes, looks=5_000),  # each lane takes a few reads
    _StepToRun("count", _count),  # before the jobs that it counts are cleaned up
    _StepToRun("cleanup", _clean_up, seconds=20.0),
    _StepToRun("backlogs", _warn),
    _StepToRun("forget", _forget),
    _StepToRun("operations", _continue_operations, seconds=OPERATIONS_SECONDS),
)
