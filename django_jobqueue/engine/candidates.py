"""Candidates of a fetch: which part of the queue's order is read, and the jobs that carry some tags."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q, Value
from django.db.models.functions import Concat

from ..expressions import Tid
from ..models import Job
from ..querysets import JobQuerySet
from . import sql
from .claims import Claimer, Place


class Candidate(NamedTuple):
    tid: str
    id: UUID
    key: str
    state: str
    seq: int
    priority: int
    position: int


class Part(Enum):
    """A part of the queue's order, relative to a place; each has a statement and a filter for a queryset."""

    ALL = sql.fetch.HEADS
    ABOVE = sql.fetch.HEADS_ABOVE  # jobs of a higher priority
    WITHIN = sql.fetch.HEADS_WITHIN  # jobs behind the place, of its own priority
    BELOW = sql.fetch.HEADS_BELOW  # all jobs behind the place

    def bounds(self, place: Place) -> Q:
        priority, position = place
        behind = Q(priority=priority, position__gt=position)
        return {
            Part.ALL: Q(),
            Part.ABOVE: Q(priority__gt=priority),
            Part.WITHIN: behind,
            Part.BELOW: Q(priority__lt=priority) | behind,
        }[self]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of the order to read, and the place it is relative to."""

    part: Part = Part.ALL
    place: Place = (0, 0)


def tagged_candidates(claimer: Claimer, stretch: Stretch, limit: int, without: Collection[str]) -> list[Candidate]:
    """Read a bounded number of jobs in order, then use the index of tags, because each alone can be slow.

    Reading in order is slow if many jobs with other tags lie in front, the index if many jobs have these tags.
    """
    jobs = Job.objects.using(claimer.using).in_queue(claimer.queue).in_part(claimer.leaf)
    waiting = jobs.filter(stretch.part.bounds(stretch.place)).fetchable().in_order()
    if without:
        waiting = waiting.exclude(singleton_key__in=sorted(without))
    if claimer.skip_names:
        waiting = waiting.exclude(name__in=claimer.skip_names)
    tagged = waiting.tagged(claimer.tags)
    candidates = []
    if stretch.part is Part.ALL:
        candidates = _locked(tagged.located_by(waiting[: max(limit, 100)]), limit)
    if len(candidates) < limit:
        rest = tagged.exclude(pk__in=[candidate.id for candidate in candidates])
        # An expression instead of the column, because with the column the planner would read the queue in order again.
        queue = Concat("queue_id", Value(""))
        by_tags = Job.objects.in_part(claimer.leaf).alias(place=queue).filter(place=claimer.queue)
        by_tags = by_tags.fetchable().tagged(claimer.tags).order_by()
        candidates += _locked(rest.located_by(by_tags), limit - len(candidates))
    return candidates


_CANDIDATE = ("id", "singleton_key", "state", "seq", "priority", "position")


def _locked(waiting: JobQuerySet, limit: int) -> list[Candidate]:
    rows = waiting.select_for_update(skip_locked=True).values_list(Tid(), *_CANDIDATE)
    return [Candidate(*row) for row in rows[:limit]]
