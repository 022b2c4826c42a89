"""The laboratory's operator, who shows no mercy."""

from __future__ import annotations

import random
from datetime import timedelta
from time import monotonic_ns as now
from typing import Any
from uuid import UUID

from django.db import OperationalError
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import DEAD, FINAL, OCCUPIED, JobState

from .race_lab import Deed, Plan, Report, here
from .race_roles import TOO_LATE, callers_transaction, is_callers, pause


def disturb(plan: Plan, chance: random.Random, report: Report, number: int) -> None:
    """An operator who cancels, skips, deletes, reschedules and pauses at random, sometimes in a strict transaction."""
    deeds = [_cancel, _cancel, _force, _skip, _skip, _delete, _delete, _delete, _reschedule, _reschedule, _pause]
    deeds += [_toggle] if plan.toggles else []
    while not here.signals.all_done.is_set() and _unsettled(plan):
        deed = chance.choice(deeds)
        done: list[Deed] = []
        try:
            if chance.random() < 0.3:
                with callers_transaction(chance.choice(("READ COMMITTED", plan.send_isolation))):
                    deed(plan, chance, done)
                    pause(chance)
            else:
                deed(plan, chance, done)
            report.deeds += done
            report.counts.update(one.verb for one in done)
        except TOO_LATE:
            report.counts["operator too late"] += 1
        except OperationalError as error:
            if not is_callers(error):
                raise
            report.counts["conflicts of a caller"] += 1
        services.resume(plan.queue)
        pause(chance, 1, 0.02)


def _unsettled(plan: Plan) -> bool:
    """Not to the end, because each deed also releases its lane, and would heal what is stranded."""
    return Job.objects.in_queue(plan.queue).final().count() < plan.jobs // 2


def _some(plan: Plan, chance: random.Random, states: Any, most: int = 1) -> list[UUID]:
    ids = list(Job.objects.in_queue(plan.queue).in_state(*states).values_list("pk", flat=True)[:300])
    return chance.sample(ids, min(most, len(ids)))


def _cancel(plan: Plan, chance: random.Random, done: list[Deed], force: bool = False) -> None:
    ids = _some(plan, chance, OCCUPIED, most=chance.choice((1, 2, 5)))
    called = now()
    if ids:
        result = services.cancel(ids, force=force)
        done += [Deed("force" if force else "cancel", id, called) for id in result.cancelled]


def _force(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    _cancel(plan, chance, done, force=True)


def _skip(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    ids = _some(plan, chance, DEAD | {JobState.RETRY, JobState.UNKNOWN_RETRY}, most=3)
    called = now()
    done += [Deed("skip", id, called) for id in services.skip(ids, reason="in the way").moved]


def _delete(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    ids = _some(plan, chance, chance.choice((DEAD, FINAL)), most=2)
    called = now()
    if ids:
        services.delete(ids)
        done += [Deed("delete", id, called) for id in ids]


def _reschedule(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    for id in _some(plan, chance, {JobState.CREATED, JobState.RETRY}):
        called = now()
        services.reschedule(id, timezone.now() + timedelta(seconds=chance.uniform(-0.1, 0.2)))
        done.append(Deed("reschedule", id, called))


def _toggle(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    services.update_queue(plan.queue, delayed_head=chance.choice(("pass", "block")))


def _pause(plan: Plan, chance: random.Random, done: list[Deed]) -> None:
    services.pause(plan.queue)
    pause(chance, 1, 0.05)
