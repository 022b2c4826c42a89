"""What the processes of the laboratory do. Pauses are part of the play, and synchronise nothing."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns as now
from typing import Any
from uuid import UUID

from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.db.models import Count, QuerySet, Sum
from django.dispatch import receiver

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidTransition, JobNotFound
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, OCCUPIED, JobState

from .race_lab import Casualty, Plan, Report, Sent, here

Role = Callable[[Plan, random.Random, Report, int], None]
TOO_LATE = (ClaimLost, InvalidTransition, JobNotFound)  # what a verb raises when another transaction was quicker


def play(role: Role, plan: Plan, number: int) -> Report:
    """Play one role to its end; whatever it did not expect is an error of the run."""
    report = Report()
    chance = random.Random(f"{plan.seed} {role.__name__} {number}")
    try:
        with connection.execute_wrapper(_watching(report)):
            role(plan, chance, report, number)
    except Exception:
        report.errors.append(f"{role.__name__} {number}: {traceback.format_exc()}")
        here.signals.all_done.set()
    finally:
        connections.close_all()
    return report


def _watching(report: Report) -> Any:
    """Count what the server refuses, also where the package tries again by itself."""

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        try:
            return execute(sql, params, many, context)
        except DatabaseError as error:
            report.sqlstates[getattr(error.__cause__, "sqlstate", None) or "none"] += 1
            raise

    return watch


@receiver(connection_created)
def notice_deadlocks_soon(*, connection: Any, **kwargs: Any) -> None:
    """So that a caller's deadlock costs a moment and not a second."""
    with connection.cursor() as cursor:
        cursor.execute("SET deadlock_timeout = '50ms'")


class Undo(Exception):
    """Ends a transaction without a commit."""


@contextmanager
def callers_transaction(isolation: str) -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        yield


def is_callers(error: OperationalError) -> bool:
    """Whether it is a conflict that belongs to the caller, because the transaction is the caller's."""
    return getattr(error.__cause__, "sqlstate", "") in ("40001", "40P01")


def pause(chance: random.Random, share: float = 0.3, most: float = 0.01) -> None:
    if chance.random() < share:
        time.sleep(chance.uniform(0, most))


# ---------------------------------------------------------------------------------------------------------- sending


def send(plan: Plan, chance: random.Random, report: Report, number: int) -> None:
    """Send this sender's share, a few jobs per transaction, which stays open for a moment or is rolled back."""
    left = plan.jobs // plan.senders
    while left > 0 and not here.signals.all_done.is_set():
        if number % 2 and _waiting(plan) >= plan.backlog * plan.keys:
            pause(chance, 1, 0.01)
            continue
        stored: list[tuple[UUID, str, int, float]] = []
        try:
            if chance.random() < 0.3:
                _send_some(plan, chance, stored, few=1)
            else:
                with callers_transaction(plan.send_isolation):
                    for _ in range(chance.choice((1, 1, 2, 3))):
                        _send_some(plan, chance, stored, few=chance.choice((1, 1, 1, 4)))
                        pause(chance)
                    if chance.random() < plan.rollbacks:
                        raise Undo
        except Undo:
            report.rolled_back += [id for id, *_ in stored]
            continue
        except OperationalError as error:
            if not is_callers(error):
                raise
            report.counts["conflicts of a caller"] += 1
            report.rolled_back += [id for id, *_ in stored]
            continue
        committed = now()
        report.sent += [Sent(id, key, called, committed, delay) for id, key, called, delay in stored]
        left -= len(stored)


def _waiting(plan: Plan) -> int:
    return Job.objects.in_queue(plan.queue).eligible().count()


def _send_some(plan: Plan, chance: random.Random, stored: list[tuple[UUID, str, int, float]], few: int) -> None:
    items: list[Any] = []
    for _ in range(few):
        item: dict[str, Any] = {"singleton_key": f"key-{chance.randrange(plan.keys)}", "retry_limit": plan.retry_limit}
        if chance.random() < plan.delays:
            item["delay"] = chance.uniform(0.01, 0.25)
        if plan.tags and chance.random() < 0.3:
            item["tags"] = ["special"]
        items.append(item)
    called = now()
    ids: list[UUID | None]
    if few == 1:
        job = services.send(plan.queue, **items[0])
        ids = [job.pk if job else None]
    else:
        ids = services.send_many(plan.queue, items, on_duplicate=None if plan.ordered else "ignore")
    stored += [
        (id, item["singleton_key"], called, item.get("delay", 0.0))
        for id, item in zip(ids, items, strict=True)
        if id is not None
    ]


# ------------------------------------------------------------------------------------------------------- recovering


def tidy(plan: Plan, chance: random.Random, report: Report, number: int) -> None:
    """The observer of dead workers: recovers their jobs, retries failed jobs, and says when all is done."""
    fallen: list[Casualty] = []
    watch = _Watch(plan, report)
    while not here.signals.all_done.is_set():
        while not here.signals.casualties.empty():
            fallen.append(here.signals.casualties.get())
        fallen = [one for one in fallen if _recover(one, chance)]
        report.counts["revived"] += len(services.retry(Job.objects.in_queue(plan.queue).dead()[:50]))
        if watch.is_over():
            here.signals.all_done.set()
        pause(chance, 1, 0.1)


class _Watch:
    """Sees when all is done, and when nothing is done any more."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self.plan, self.report = plan, report
        self.seen: Any = None
        self.changed = time.monotonic()

    def is_over(self) -> bool:
        senders_done = here.signals.senders_done.is_set()  # asked first: what they sent is there
        unfinished = Job.objects.in_queue(self.plan.queue).in_state(*OCCUPIED | DEAD)
        progress = unfinished.aggregate(left=Count("*"), attempts=Sum("attempt"))
        if progress != self.seen:
            self.seen, self.changed = progress, time.monotonic()
        if time.monotonic() - self.changed > self.plan.patience:
            self._say_stuck(unfinished)
            return True
        return senders_done and not progress["left"]

    def _say_stuck(self, unfinished: QuerySet[Job]) -> None:
        columns = ("singleton_key", "seq", "state", "hold", "attempt", "start_after", "assignee", "tags")
        rows = list(unfinished.order_by("singleton_key", "seq").values_list(*columns)[:20])
        stranded = services.check_lanes()
        self.report.errors.append(f"stuck with {self.seen['left']} jobs; stranded are {stranded}; the first: {rows}")


def _recover(one: Casualty, chance: random.Random) -> bool:
    """Whether jobs of this worker are left, because another transaction locked them or they have a lease."""
    left = Job.objects.assigned_to(one.name).running()
    if one.leased and not left.filter(state=JobState.CANCELLING).exists():
        return left.exists()
    if chance.random() < 0.5:
        services.mark_worker_unresponsive(one.name)
    else:
        services.recover_lost([one.incarnation], how="crashed")
    return left.exists()
