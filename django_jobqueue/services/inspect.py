"""Looking without touching: a job, a list, counts, and why something does not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Avg, Count, F, Min, Q, Sum
from django.db.models.functions import TruncMinute
from django.utils.timezone import localtime

from ..conf import get_settings
from ..encoding import check_tags
from ..engine import sql
from ..engine.claims import Target, database_of, id_of
from ..engine.databases import database
from ..engine.queues import check_exists, named
from ..engine.transactions import in_transaction, rows
from ..exceptions import JobNotFound, NotOrdered
from ..expressions import StatementTimestamp
from ..identifiers import as_uuid
from ..models import BlockedKey, Job, Operation, Queue, Worker
from ..options import LARGEST, check_int, check_state
from ..policies import ORDERED, QueuePolicy
from ..states import BLOCKING, DEAD, ELIGIBLE, FINAL, OCCUPIED, RETRYING, RUNNING, Hold, JobState

MOST = 100_000  # of one queue and kind that are counted; with more it is "at least"


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


class Waiting(NamedTuple):
    """Jobs of a queue that wait, in one state and for one reason."""

    queue: str
    state: str
    hold: str | None
    number: int


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


def why(
    job: Target,
    *,
    find_handler: Callable[[str, str], object] | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> str:
    """In a sentence or two: why this job is not running, or what became of it. Raises ``JobNotFound``.

    A process that has discovered its handlers passes :func:`django_jobqueue.handlers.find` as ``find_handler``, and is
    told when the job's is not among them.
    """
    using = database_of(job, using)
    found = get_job(id_of(job), queue=queue, using=using)
    state = JobState(found.state)
    if state in RUNNING:
        return _why_running(found)
    if state in FINAL:
        return _why_ended(found)
    return in_transaction(using, partial(_why_waiting, found, using, find_handler))  # planned by index


def _why_running(job: Job) -> str:
    who = f"worker {job.assignee!r}" if job.assignee else "a worker"
    text = f"It is running: {who} holds attempt {job.attempt} since {_time(job.assigned_at)}."
    if job.state == JobState.CANCELLING:
        text += " Its cancellation was asked for, and the worker has not answered yet."
    return text


def _why_ended(job: Job) -> str:
    text = f"It has ended: {job.get_state_display()} since {_time(job.finalized_at)}."
    if job.error and job.state != JobState.COMPLETED:
        last = job.error.strip().splitlines()[-1][:200]
        text += f" {last}" if last.endswith((".", "!", "?")) else f" {last}."
    if job.state in DEAD and job.policy == ORDERED:
        text += f" It blocks the key {job.singleton_key!r} until somebody retries or skips it."
    return text


def _why_waiting(job: Job, using: str, find_handler: Callable[[str, str], object] | None) -> str:
    queue = Queue.objects.using(using).filter(pk=job.queue_id).first()
    if queue is None:
        return f"Its queue {job.queue_id!r} does not exist any more."
    if queue.is_paused:
        return f"The queue {queue.name!r} is paused since {_time(queue.paused_at)}{_by_whom(queue, using)}."
    ahead = _ahead_in_lane(job, queue, using)
    if ahead is not None:
        return ahead
    now = rows(using, "SELECT statement_timestamp()")[0][0]
    if job.hold == Hold.UNTIL and job.start_after > now:
        what = "its next attempt" if job.state in RETRYING else "its start"
        return f"It waits until {_time(job.start_after)} for {what}."
    return _no_worker(job, using) or _no_handler(job, find_handler) or _place(job, using) + _ahead_in_group(job, using)


def _by_whom(queue: Queue, using: str) -> str:
    """Who paused it and why, if that was said."""
    pauses = Operation.objects.using(using).filter(verb="pause", queue=queue.name, started_at__gte=queue.paused_at)
    found = pauses.order_by("started_at").first()
    if found is None:
        return ""
    reason = found.reason.strip().rstrip(".")
    return (f", by {found.operator!r}" if found.operator else "") + (f": {reason}" if reason else "")


def _ahead_in_lane(job: Job, queue: Queue, using: str) -> str | None:
    if not queue.has_lanes:
        return None
    blocking = BLOCKING if queue.is_ordered else RUNNING
    lane = Job.objects.using(using).in_lane_of(job).filter(policy=job.policy).exclude(pk=job.pk)  # has its indexes
    other = lane.in_state(*blocking).order_by("seq").first()
    key = f"The key {job.singleton_key!r}" if job.singleton_key else f"The queue {queue.name!r}"
    if other is not None:
        return f"{key} is blocked by job {other.pk}. {_what_it_does(other)}"
    if queue.is_ordered and job.state == JobState.CREATED:
        first = lane.in_state(JobState.CREATED).filter(seq__lt=job.seq)
        if queue.delayed_head == "pass":
            first = first.exclude(hold=Hold.UNTIL)
        earlier = first.order_by("seq").first()
        if earlier is not None:
            number = _jobs(first.count()).replace(" job", " earlier job")
            return f"{key} has {number}; the next is job {earlier.pk}."
    return None


def _ahead_in_group(job: Job, using: str) -> str:
    """What keeps it from readers by group, which plain readers do not care for."""
    if not job.group_key or job.policy != QueuePolicy.STANDARD:
        return ""
    group = Job.objects.using(using).in_queue(job.queue_id).filter(group_key=job.group_key).exclude(group_key="")
    running = group.exclude(state__in=sorted(set(JobState) - RUNNING)).order_by("group_key").first()
    other = running or group.in_state(*OCCUPIED | DEAD).order_by("group_key", "seq").first()
    if other is None or other.pk == job.pk:
        return ""
    does = "That waits, too." if other.state == JobState.CREATED else _what_it_does(other)
    return f" But readers by group take job {other.pk} of the group {job.group_key!r} first. {does}"


def _what_it_does(other: Job) -> str:
    if other.state in DEAD:
        error = other.error.strip().splitlines()[-1][:200] if other.error.strip() else "no error text"
        return f"That failed for good at {_time(other.finalized_at)} ({error}): retry it or skip it."
    if other.state in RUNNING:
        return f"That is running since {_time(other.assigned_at)}."
    return f"That waits for its next attempt, due {_time(other.start_after)}."


def _no_worker(job: Job, using: str) -> str | None:
    limit = StatementTimestamp() - timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    live = Worker.objects.using(using).filter(stopped_at=None, heartbeat_at__gt=limit)
    takers = [worker for worker in live if not worker.queues or job.queue_id in worker.queues]
    if not takers:
        if not Worker.objects.using(using).exists():
            return "No worker is running here, and none was lately: start one with manage.py runjobs."
        return f"No live worker takes jobs of the queue {job.queue_id!r}."
    if not any(set(worker.tags) <= set(job.tags) for worker in takers):
        return f"No live worker takes its tags ({', '.join(job.tags) or 'none'})."
    return None


def _no_handler(job: Job, find_handler: Callable[[str, str], object] | None) -> str | None:
    if find_handler is None or find_handler(job.queue_id, job.name) is not None:
        return None
    if job.name:
        return f"This code has no handler named {job.name!r}: a worker that runs it will fail the job."
    return (
        f"The job names no handler, and this code has none for the queue {job.queue_id!r}, or several and no default."
    )


def _place(job: Job, using: str) -> str:
    before = Q(priority__gt=job.priority) | Q(priority=job.priority, position__lt=job.position)
    ahead = Job.objects.using(using).in_queue(job.queue_id).fetchable().filter(before).in_order()[:1000].count()
    if not ahead:
        return "Nothing holds it: it is the next to be fetched."
    if ahead == 1000:
        return "Nothing holds it: 1,000 or more jobs are fetched before it."
    return f"Nothing holds it: {_jobs(ahead)} {'is' if ahead == 1 else 'are'} fetched before it."


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


def _time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{localtime(moment):%Y-%m-%d %H:%M:%S %Z}"


def waiting(queues: Iterable[str] | None = None, *, most: int = MOST, using: str) -> list[Waiting]:
    """Count what waits in these queues or in all, along the indexes of that: exact up to ``most`` of each kind."""
    return [Waiting(*row) for row in _counted("state", queues, most, using)]


def _counted(state: str, queues: Iterable[str] | None, most: int, using: str) -> list[tuple[Any, ...]]:
    params = {"queues": None if queues is None else list(queues), "most": most}
    return in_transaction(using, partial(rows, using, sql.inspect.WAITING.format(state=state), params))


def total_waiting(queues: Iterable[str] | None = None, *, at_least: int = 0, using: str) -> Counter[str]:
    """How many jobs wait in each of these queues or of all: exact up to ``MOST`` of each kind, or ``at_least``."""
    numbers: Counter[str] = Counter()
    for queue, _, _, number in _counted("''", queues, max(MOST, at_least), using):
        numbers[queue] += number
    return numbers
