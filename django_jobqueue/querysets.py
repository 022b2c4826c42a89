"""Querysets: the methods select rows, and are named with adjectives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db import models
from django.db.models import (
    Case,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    Min,
    OuterRef,
    Q,
    Subquery,
    When,
)
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Coalesce
from django.db.models.sql.datastructures import BaseTable

from .claims import Claim
from .expressions import IsInBatches, LiesAt, StatementTimestamp, Tid, WithoutKeys, quoted
from .policies import ORDERED
from .selection import Range, Selection
from .states import BLOCKING, DEAD, ELIGIBLE, FINAL, RUNNING, Hold, JobState

if TYPE_CHECKING:
    from .models import BlockedKey, Job, Operation, Queue, Schedule  # noqa: F401


class QueueQuerySet(models.QuerySet["Queue"]):
    def with_counts(self) -> Self:
        """Annotate each queue with the number of its jobs in every state."""
        from .models import Job

        def number(state: JobState) -> Coalesce:
            jobs = Job.objects.filter(queue=OuterRef("pk"), state=state).order_by().values("queue")
            counted = Subquery(jobs.annotate(n=Count("*")).values("n"), output_field=IntegerField())
            return Coalesce(counted, 0)

        return self.annotate(**{f"{state.value}_count": number(state) for state in JobState})

    def paused(self) -> Self:
        return self.filter(paused_at__isnull=False)


class OperationQuerySet(models.QuerySet["Operation"]):
    def for_lists(self) -> Self:
        """Without the ids, refusals and data, which can be large: ``filters`` and ``facts`` have the rest.

        ``named`` is the number of jobs that the selection names by their ids; null if it has filters.
        """
        return self.defer("selection", "details", "cursor", "snapshot").annotate(
            named=Func(KeyTransform("ids", "selection"), function="jsonb_array_length", output_field=IntegerField()),
            filters=WithoutKeys("selection", "ids"),
            facts=WithoutKeys("details", "refused", "data", "changed"),
        )

    def of_job(self, job: UUID) -> Self:
        """The operations that changed this job."""
        from .models import OperationBatch

        batches = OperationBatch.objects.using(self.db).filter(first_id__lte=job, last_id__gte=job)
        return self.filter(pk__in=batches.filter(ids__contains=[job]).values("operation"))


class PartOfTable(BaseTable):
    """One partition of a table, with the alias of the table."""

    def __init__(self, table_name: str, alias: str, part: str) -> None:
        super().__init__(table_name, alias)
        self.alias, self.part = alias, part

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return f"{connection.ops.quote_name(self.part)} {quoted(compiler, self.alias)}", ()

    def relabeled_clone(self, change_map: Mapping[str | None, str]) -> PartOfTable:
        return PartOfTable(self.table_name, change_map.get(self.alias, self.alias), self.part)


class JobQuerySet(models.QuerySet["Job"]):
    def in_queue(self, queue: str) -> Self:
        """The jobs of this queue. This also prunes the partitions, so every frequent query begins with it."""
        return self.filter(queue=queue)

    def in_part(self, leaf: str) -> Self:
        """Read only the part of the table that contains the queue, because that halves the planning time."""
        clone = self._chain()  # type: ignore[attr-defined]
        alias = clone.query.get_initial_alias()
        clone.query.alias_map[alias] = PartOfTable(self.model._meta.db_table, alias, leaf)
        return clone  # type: ignore[no-any-return]

    def located_by(self, rows: JobQuerySet) -> Self:
        """The jobs that another query finds; it runs first, so it decides by which index they are read."""
        return self.filter(LiesAt(Tid(), ArraySubquery(rows.annotate(tid=Tid()).values("tid"))))

    def in_state(self, *states: str) -> Self:
        return self.filter(state__in=sorted(states))

    def eligible(self) -> Self:
        """Jobs that wait for an attempt, on hold or not."""
        return self.filter(state__in=sorted(ELIGIBLE))

    def of_claim(self, claim: Claim) -> Self:
        """The job of this claim, if the claim is still its latest."""
        numbered = {} if claim.number is None else {"claim_number": claim.number}
        return self.filter(pk=claim.job_id, attempt=claim.attempt, **numbered)

    def fetchable(self) -> Self:
        """Waiting jobs that are not on hold, neither for their time nor for a job ahead in their lane."""
        return self.filter(state__in=sorted(ELIGIBLE), hold=None)

    def in_order(self) -> Self:
        """The highest priority first, then by the time of the last retry or of the creation."""
        return self.order_by("-priority", "position")

    def running(self) -> Self:
        return self.filter(state__in=sorted(RUNNING))

    def final(self) -> Self:
        return self.filter(state__in=sorted(FINAL))

    def dead(self) -> Self:
        """Jobs that failed for good; an operator can retry them."""
        return self.filter(state__in=sorted(DEAD))

    def blocking(self) -> Self:
        """Jobs that block an ordered key for all other jobs of the key."""
        return self.filter(policy=ORDERED, state__in=sorted(BLOCKING))

    def held_until(self) -> Self:
        return self.filter(hold=Hold.UNTIL)

    def due(self) -> Self:
        return self.filter(start_after__lte=StatementTimestamp())

    def overdue(self) -> Self:
        """Active jobs past their deadline."""
        return self.filter(state=JobState.ACTIVE, expire_at__lte=StatementTimestamp())

    def tagged(self, tags: Sequence[str]) -> Self:
        """Jobs that carry every one of these tags; without tags all jobs."""
        if not tags:
            return self
        # The first condition implies the second, but without the second the planner does not use the partial index.
        return self.filter(tags__contains=list(tags)).exclude(tags=[])

    def chosen(self, ids: Iterable[UUID], tags: Sequence[str]) -> Self:
        """Jobs with these ids, and all jobs that carry every one of these tags."""
        condition = Q(pk__in=list(ids))
        if tags:
            condition |= Q(tags__contains=list(tags)) & ~Q(tags=[])
        return self.filter(condition)

    def assigned_to(self, worker: str) -> Self:
        return self.filter(assignee=worker)

    def in_lane_of(self, job: Job) -> Self:
        return self.filter(queue=job.queue_id, singleton_key=job.singleton_key)

    def blocking_keys(self) -> Self:
        """Jobs that failed for good on an ordered queue: each blocks its key until an operator decides."""
        return self.filter(policy=ORDERED).dead()

    def copied(self) -> Self:
        """Copies of jobs of another queue: dead letters."""
        return self.filter(source_id__isnull=False).exclude(source_queue=F("queue"))

    def selected(self, selection: Selection) -> Self:
        """The jobs of a selection; the operation checks whether they changed since its snapshot."""
        jobs = self
        if selection.ids is not None:
            jobs = jobs.filter(pk__in=selection.ids)
        if selection.queue is not None:
            jobs = jobs.in_queue(selection.queue)
        if selection.states is not None:
            jobs = jobs.in_state(*selection.states)
        if selection.tags is not None:
            jobs = jobs.tagged(selection.tags)
        if selection.operation is not None:
            jobs = jobs.changed_by(selection.operation)
        if selection.blocks_key:
            jobs = jobs.blocking_keys()
        if selection.search is not None:
            jobs = jobs.found_by(selection.search)
        if selection.duration is not None:
            jobs = jobs.alias(ran=_RAN)
        return jobs.filter(**_columns(selection))

    def changed_by(self, operation: UUID) -> Self:
        """The jobs that an operation changed, as far as they still exist."""
        return self.filter(IsInBatches(operation))

    def found_by(self, text: str) -> Self:
        """The job with this id, or jobs whose id or key begins with this text."""
        try:
            return self.filter(pk=UUID(text))
        except ValueError:
            return self.filter(Q(singleton_key__startswith=text) | _id_begins(text))


_ID_BEGINS = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{0,4}){0,3}-?[0-9a-fA-F]{0,12}")
_RAN = ExpressionWrapper(  # how long the latest attempt took
    Case(When(state=JobState.COMPLETED, then=F("finalized_at")), default=F("attempt_finished_at")) - F("assigned_at"),
    output_field=DurationField(),
)


def _columns(selection: Selection) -> dict[str, Any]:
    """The conditions of a selection on columns, as look-ups."""
    look_ups: dict[str, Any] = {
        "singleton_key": selection.key,
        "singleton_key__startswith": selection.key_prefix,
        "name": selection.handler,
        "assignee": selection.worker,
        "fingerprint": selection.fingerprint,
        "source_queue": selection.source_queue,
        "seq__gt": selection.after_seq,
        "seq__lte": selection.until_seq,
        **_bounds("created_at", selection.created_at),
        **_bounds("started_at", selection.started_at),
        **_bounds("finalized_at", selection.finalized_at),
        **_bounds("attempt", selection.attempt),
        **_bounds("ran", _as_durations(selection.duration)),
    }
    return {name: value for name, value in look_ups.items() if value is not None}


def _bounds(column: str, within: Range[Any] | None) -> dict[str, Any]:
    return {} if within is None else {f"{column}__gte": within.low, f"{column}__lte": within.high}


def _as_durations(seconds: Range[float] | None) -> Range[timedelta] | None:
    if seconds is None:
        return None
    low, high = (None if bound is None else timedelta(seconds=bound) for bound in (seconds.low, seconds.high))
    return Range(low, high)


def _id_begins(text: str) -> Q:
    """Ids that begin with this text, as a range, because an index can read it; no ids if they cannot begin so."""
    if not _ID_BEGINS.fullmatch(text):
        return Q(pk__in=[])
    digits = text.replace("-", "").lower()
    return Q(pk__gte=UUID(digits.ljust(32, "0")), pk__lte=UUID(digits.ljust(32, "f")))


class BlockedKeyQuerySet(JobQuerySet):
    def with_waiting(self) -> Self:
        """Annotate each job with the number of jobs that wait behind it, and the creation of the oldest."""
        from .models import Job

        behind = (
            Job.objects.filter(
                queue=OuterRef("queue"),
                singleton_key=OuterRef("singleton_key"),
                policy=ORDERED,
                state=JobState.CREATED,
            )
            .order_by()
            .values("queue")
        )
        counted = Subquery(behind.annotate(n=Count("*")).values("n"), output_field=IntegerField())
        oldest = Subquery(behind.annotate(oldest=Min("created_at")).values("oldest"))
        return self.annotate(waiting=Coalesce(counted, 0), oldest_waiting_at=oldest, blocked_since=F("finalized_at"))


class BlockedKeyManager(models.Manager["BlockedKey"]):
    def get_queryset(self) -> Any:
        return BlockedKeyQuerySet(self.model, using=self._db).blocking_keys()

    def with_waiting(self) -> Any:
        return self.get_queryset().with_waiting()


TIMING = frozenset({"cron", "timezone", "enabled"})  # the columns that decide when a schedule is due


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def enabled(self) -> Self:
        return self.filter(enabled=True)

    def due(self) -> Self:
        """Enabled schedules whose next slot is due, or not calculated yet."""
        return self.enabled().filter(Q(next_at__isnull=True) | Q(next_at__lte=StatementTimestamp()))

    def of_queue(self, queue: str) -> Self:
        """Schedules that send to this queue."""
        return self.filter(queue=queue)

    def update(self, **values: Any) -> int:
        """Update the rows; if this changes when a schedule is due, clear ``next_at``: it is then calculated again."""
        changed = {name: values[name] for name in TIMING & values.keys()}
        if changed and "next_at" not in values:
            values["next_at"] = Case(When(**changed, then=F("next_at")), default=None)
        return super().update(**values)

    update.alters_data = True  # type: ignore[attr-defined]
