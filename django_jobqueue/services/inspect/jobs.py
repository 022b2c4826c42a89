"""Read one job, lists of jobs, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Avg, Count, F, Min, Q, Sum
from django.db.models.functions import TruncMinute

from ...engine.databases import database, named
from ...engine.numbers import TooManyJobs, id_with_number
from ...engine.queues import check_exists
from ...exceptions import InvalidOption, JobNotFound, NotOrdered
from ...expressions import StatementTimestamp
from ...identifiers import as_number, as_uuid
from ...models import BlockedKey, Job
from ...options import LARGEST, check_int, check_state
from ...states import DEAD, ELIGIBLE, FINAL, RETRYING, JobState
from ...text import check_tags


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of the jobs of a queue, or of all queues, that have all of the tags, taken at one moment."""

    queue: str | None
    tags: tuple[str, ...]
    by_state: dict[JobState, int]
    retries: int
    oldest_age: timedelta | None  # of the waiting jobs
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
        """Jobs that wait for a retry. Jobs that failed for good count as ``stopped``."""
        return self._sum(RETRYING)

    @property
    def stopped(self) -> int:
        """Jobs in a final state other than completed."""
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
    """``using``, or by default the alias of the jobs' database; ``ImproperlyConfigured`` if it is not PostgreSQL."""
    return database(using)


def get_job(id: UUID | str, *, queue: str | None = None, using: str | None = None) -> Job:
    """The job as it is now, or ``JobNotFound``."""
    job_id = as_uuid(id)
    jobs = Job.objects.using(database(using)).filter(pk=job_id)
    job = (jobs if queue is None else jobs.in_queue(named(queue))).first()
    if job is None:
        raise JobNotFound(job_id)
    return job


aget_job = sync_to_async(get_job)


def find_job(id: UUID | str | int, *, using: str | None = None) -> Job:
    """The job with an id or a number as people write it: ``154``, ``"154"``, ``"#154"`` or the text of the id.

    The number is the job's ``seq``, which all pages, commands and logs show. Raises ``JobNotFound``, and
    ``InvalidOption`` for anything else.
    """
    return get_job(find_job_id(id, using=using), using=using)


def find_job_id(id: UUID | str | int, *, using: str | None = None) -> UUID:
    """The id of the job with a number; an id is returned as it is, also if no job has it."""
    number = as_number(id)
    if number is None:
        return as_uuid(id)
    try:
        job_id = id_with_number(number, database(using))
    except TooManyJobs:
        hint = "There are too many jobs to look at each. Give the id of the job instead."
        raise InvalidOption("id", f"the job with the number {number} was not found in time", hint=hint) from None
    if job_id is None:
        raise JobNotFound(number=number)
    return job_id


@dataclass(frozen=True, slots=True)
class JobPulse:
    """What changes on the page of a job while it is open."""

    state: str
    attempt: int
    hold: str | None
    progress: float | None
    progress_text: str
    assigned_at: datetime | None

    @property
    def mark(self) -> str:
        """A text that changes when more of the page has changed than the progress."""
        return f"{self.state}-{self.attempt}-{self.hold or ''}-{self.progress is not None}"


def job_pulse(id: UUID, *, using: str) -> JobPulse | None:
    """The pulse of a job, read by one statement; ``None`` if there is no such job."""
    columns = ("state", "attempt", "hold", "progress", "progress_text", "assigned_at")
    row = Job.objects.using(using).filter(pk=id).values_list(*columns).first()
    return None if row is None else JobPulse(*row)


def list_jobs(
    queue: str, state: str | None = None, *, limit: int = 100, offset: int = 0, using: str | None = None
) -> list[Job]:
    """Jobs of a queue in the order they were sent. Raises ``QueueNotFound`` and ``InvalidOption``."""
    using = database(using)
    queue = check_exists(queue, using).name
    limit = check_int(limit, option="limit", minimum=0, maximum=LARGEST)
    offset = check_int(offset, option="offset", minimum=0, maximum=LARGEST)
    jobs = Job.objects.using(using).in_queue(queue)
    if state is not None:
        jobs = jobs.in_state(check_state(state))
    return list(jobs.order_by("seq")[offset : offset + limit])


def blocked_keys(queue: str, *, using: str | None = None) -> list[str]:
    """The blocked keys of an ordered queue, the longest blocked first.

    Raises ``QueueNotFound``, and ``NotOrdered`` for another policy.
    """
    using = database(using)
    stored = check_exists(queue, using)
    if not stored.is_ordered:
        raise NotOrdered(stored.name, stored.policy)
    keys = BlockedKey.objects.using(using).filter(queue=stored).order_by("finalized_at", "seq")
    return list(keys.values_list("singleton_key", flat=True))


def stats(queue: str | None = None, *, tags: Iterable[str] = (), using: str | None = None) -> Stats:
    """Count jobs now, by one consistent statement. Raises ``QueueNotFound``."""
    using = database(using)
    tagged = check_tags(tags) if tags else []
    jobs = Job.objects.using(using).tagged(tagged)
    if queue is not None:
        queue = check_exists(queue, using).name
        jobs = jobs.in_queue(queue)
    counts = (
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
    for row in counts:
        by_state[JobState(row["state"])] = row["number"]
        retries += row["retries"] or 0
        took = row["took"] or took
        if row["oldest"] is not None:
            age = row["now"] - row["oldest"]
            oldest = age if oldest is None else max(oldest, age)
    return Stats(queue, tuple(tagged), by_state, retries, oldest, took)


def activity(queue: str | None = None, *, minutes: int = 60, using: str | None = None) -> list[Minute]:
    """Jobs sent, completed and failed per queue and minute, for the last ``minutes``; empty minutes are left out.

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
