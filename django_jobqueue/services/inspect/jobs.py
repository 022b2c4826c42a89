"""A job, a list, counts: looking without touching."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Avg, Count, F, Min, Q, Sum
from django.db.models.functions import TruncMinute

from ...engine.databases import database
from ...engine.queues import check_exists, named
from ...exceptions import JobNotFound, NotOrdered
from ...expressions import StatementTimestamp
from ...identifiers import as_uuid
from ...models import BlockedKey, Job
from ...options import LARGEST, check_int, check_state
from ...states import DEAD, ELIGIBLE, FINAL, RETRYING, JobState
from ...text import check_tags


@dataclass(frozen=True, slots=True)
class Stats:
    """The jobs of a queue, or of all, that carry all of the tags, counted at one moment."""

    queue: str | None
    tags: tuple[str, ...]
    by_state: dict[JobState, int]
    retries: int
    oldest_age: timedelta | None  # of those that wait
    average_completion: timedelta | None  # from first start to success

    def __getitem__(self, state: str) -> int:
        return self.by_state[JobState(state)]

    def _sum(self, states: Iterable[JobState]) -> int:
        return sum(self.by_state[state] for state in states)

    @property
    def total(self) -> int:
        return sum(self.by_state.values())

    @property
    def pending(self) -> int:
        return self.by_state[JobState.CREATED]

    @property
    def running(self) -> int:
        return self.by_state[JobState.ACTIVE]

    @property
    def cancelling(self) -> int:
        return self.by_state[JobState.CANCELLING]

    @property
    def completed(self) -> int:
        return self.by_state[JobState.COMPLETED]

    @property
    def failed(self) -> int:
        """Jobs whose last attempt failed or is unknown and that wait for the next; the dead are among the stopped."""
        return self._sum(RETRYING)

    @property
    def stopped(self) -> int:
        """Everything final that did not succeed."""
        return self._sum(FINAL - {JobState.COMPLETED})


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened in one queue in one minute."""

    queue: str
    minute: datetime
    created: int
    completed: int
    failed: int


def job_database(using: str | None = None) -> str:
    """The alias of the database that jobs are in, unless one is named; ``ImproperlyConfigured`` if not PostgreSQL."""
    return database(using)


def get_job(id: UUID | str, *, queue: str | None = None, using: str | None = None) -> Job:
    """The job as it is now, or ``JobNotFound``."""
    wanted = as_uuid(id)
    found = Job.objects.using(database(using)).filter(pk=wanted)
    job = (found if queue is None else found.in_queue(named(queue))).first()
    if job is None:
        raise JobNotFound(wanted)
    return job


aget_job = sync_to_async(get_job)


def list_jobs(
    queue: str, state: str | None = None, *, limit: int = 100, offset: int = 0, using: str | None = None
) -> list[Job]:
    """Jobs of a queue in the order they were sent. Raises ``QueueNotFound`` and ``InvalidOption``."""
    using = database(using)
    queue = check_exists(queue, using).name
    limit = check_int(limit, option="limit", minimum=0, maximum=LARGEST)
    offset = check_int(offset, option="offset", minimum=0, maximum=LARGEST)
    found = Job.objects.using(using).in_queue(queue)
    if state is not None:
        found = found.in_state(check_state(state))
    return list(found.order_by("seq")[offset : offset + limit])


def blocked_keys(queue: str, *, using: str | None = None) -> list[str]:
    """The keys of an ordered queue that a job blocks which failed for good, each once, longest blocked first.

    Raises ``QueueNotFound``, and ``NotOrdered`` for another policy.
    """
    using = database(using)
    found = check_exists(queue, using)
    if not found.is_ordered:
        raise NotOrdered(found.name, found.policy)
    keys = BlockedKey.objects.using(using).filter(queue=found).order_by("finalized_at", "seq")
    return list(keys.values_list("singleton_key", flat=True))


def stats(queue: str | None = None, *, tags: Iterable[str] = (), using: str | None = None) -> Stats:
    """Count jobs now, by one consistent statement. Raises ``QueueNotFound``."""
    using = database(using)
    tagged = check_tags(tags) if tags else []
    jobs = Job.objects.using(using).tagged(tagged)
    if queue is not None:
        queue = check_exists(queue, using).name
        jobs = jobs.in_queue(queue)
    found = (
        jobs.order_by()
        .values("state")
        .annotate(
            number=Count("*"),
            retries=Sum("retry_count"),
            oldest=Min("created_at", filter=Q(state__in=sorted(ELIGIBLE))),
            took=Avg(F("finalized_at") - F("started_at"), filter=Q(state=JobState.COMPLETED)),
            now=StatementTimestamp(),
        )
    )
    by_state = dict.fromkeys(JobState, 0)
    retries, oldest, took = 0, None, None
    for row in found:
        by_state[JobState(row["state"])] = row["number"]
        retries += row["retries"] or 0
        took = row["took"] or took
        if row["oldest"] is not None:
            age = row["now"] - row["oldest"]
            oldest = age if oldest is None else max(oldest, age)
    return Stats(queue, tuple(tagged), by_state, retries, oldest, took)


def activity(queue: str | None = None, *, minutes: int = 60, using: str | None = None) -> list[Minute]:
    """Jobs sent, completed and failed per queue and minute, for the last ``minutes``; minutes without any are left out.

    Raises ``QueueNotFound`` and ``InvalidOption``.
    """
    using = database(using)
    minutes = check_int(minutes, option="minutes", minimum=1, maximum=60 * 24 * 31)
    jobs = Job.objects.using(using).all()
    if queue is not None:
        jobs = jobs.in_queue(check_exists(queue, using).name)
    since = StatementTimestamp() - timedelta(minutes=minutes)
    counts: dict[tuple[str, datetime], list[int]] = {}
    kinds = (
        ("created_at", Q()),
        ("finalized_at", Q(state=JobState.COMPLETED)),
        ("finalized_at", Q(state__in=sorted(DEAD)) | Q(reason="exhausted")),
    )
    for place, (when, which) in enumerate(kinds):
        found = jobs.filter(which, **{f"{when}__gte": since}).order_by().annotate(minute=TruncMinute(when))
        for name, minute, number in (
            found.values("queue_id", "minute").annotate(n=Count("*")).values_list("queue_id", "minute", "n")
        ):
            counts.setdefault((name, minute), [0, 0, 0])[place] = number
    return [Minute(name, minute, *numbers) for (name, minute), numbers in sorted(counts.items())]
