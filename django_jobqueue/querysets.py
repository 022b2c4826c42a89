"""Which rows are meant: adjectives, pure and chainable, one idea each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from django.db import models
from django.db.models import Case, Count, F, IntegerField, Min, OuterRef, Q, Subquery, When
from django.db.models.functions import Coalesce

from .claims import Claim
from .expressions import StatementTimestamp
from .policies import ORDERED
from .states import BLOCKING, DEAD, ELIGIBLE, FINAL, RUNNING, Hold, JobState

if TYPE_CHECKING:
    from .models import BlockedKey, Job, Queue, Schedule  # noqa: F401


class QueueQuerySet(models.QuerySet["Queue"]):
    def with_counts(self) -> Self:
        """Each queue with the number of its jobs in every state, counted now."""
        from .models import Job

        def number(state: JobState) -> Coalesce:
            jobs = Job.objects.filter(queue=OuterRef("pk"), state=state).order_by().values("queue")
            counted = Subquery(jobs.annotate(n=Count("*")).values("n"), output_field=IntegerField())
            return Coalesce(counted, 0)

        return self.annotate(**{f"{state.value}_count": number(state) for state in JobState})

    def paused(self) -> Self:
        return self.filter(paused_at__isnull=False)


class JobQuerySet(models.QuerySet["Job"]):
    def in_queue(self, queue: str) -> Self:
        """Also prunes the partitions, so every hot path begins with it."""
        return self.filter(queue=queue)

    def in_state(self, *states: str) -> Self:
        return self.filter(state__in=sorted(states))

    def eligible(self) -> Self:
        """Waiting for an attempt, held or not."""
        return self.filter(state__in=sorted(ELIGIBLE))

    def of_claim(self, claim: Claim) -> Self:
        """The job, if this claim still is its latest."""
        numbered = {} if claim.number is None else {"claim_number": claim.number}
        return self.filter(pk=claim.job_id, attempt=claim.attempt, **numbered)

    def fetchable(self) -> Self:
        """Waiting, and held by nothing: neither its time nor a job ahead in its lane."""
        return self.filter(state__in=sorted(ELIGIBLE), hold=None)

    def in_order(self) -> Self:
        """Highest priority first, then by last retry or else creation."""
        return self.order_by("-priority", "position")

    def running(self) -> Self:
        return self.filter(state__in=sorted(RUNNING))

    def final(self) -> Self:
        return self.filter(state__in=sorted(FINAL))

    def dead(self) -> Self:
        """Failed for good, and revivable."""
        return self.filter(state__in=sorted(DEAD))

    def blocking(self) -> Self:
        """Holding an ordered key against every other job of it."""
        return self.filter(policy=ORDERED, state__in=sorted(BLOCKING))

    def held_until(self) -> Self:
        return self.filter(hold=Hold.UNTIL)

    def due(self) -> Self:
        return self.filter(start_after__lte=StatementTimestamp())

    def overdue(self) -> Self:
        """Active past the time its attempt was allowed."""
        return self.filter(state=JobState.ACTIVE, expire_at__lte=StatementTimestamp())

    def tagged(self, tags: Sequence[str]) -> Self:
        """Carrying every one of these tags; no tags means every job."""
        if not tags:
            return self
        # The second condition is implied by the first, but only so written is the partial index considered.
        return self.filter(tags__contains=list(tags)).exclude(tags=[])

    def chosen(self, ids: Iterable[UUID], tags: Sequence[str]) -> Self:
        """These ids, and besides all jobs that carry every one of these tags."""
        wanted = Q(pk__in=list(ids))
        if tags:
            wanted |= Q(tags__contains=list(tags)) & ~Q(tags=[])
        return self.filter(wanted)

    def assigned_to(self, worker: str) -> Self:
        return self.filter(assignee=worker)

    def in_lane_of(self, job: Job) -> Self:
        return self.filter(queue=job.queue_id, singleton_key=job.singleton_key)


class BlockedKeyQuerySet(JobQuerySet):
    def with_waiting(self) -> Self:
        """Each with the number of jobs that wait behind it, and since when the oldest does."""
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
        return BlockedKeyQuerySet(self.model, using=self._db).filter(policy=ORDERED).dead()

    def with_waiting(self) -> Any:
        return self.get_queryset().with_waiting()


TIMING = frozenset({"cron", "timezone", "enabled"})  # what decides when a schedule is due


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def enabled(self) -> Self:
        return self.filter(enabled=True)

    def due(self) -> Self:
        """On, and with a slot that no scheduler has handled, or with none worked out yet."""
        return self.enabled().filter(Q(next_at__isnull=True) | Q(next_at__lte=StatementTimestamp()))

    def of_queue(self, queue: str) -> Self:
        """Sending to this queue."""
        return self.filter(queue=queue)

    def update(self, **values: Any) -> int:
        """As ever; and where it changes when a schedule is due, the next scheduler works that out anew."""
        changed = {name: values[name] for name in TIMING & values.keys()}
        if changed and "next_at" not in values:
            values["next_at"] = Case(When(**changed, then=F("next_at")), default=None)
        return super().update(**values)

    update.alters_data = True  # type: ignore[attr-defined]
