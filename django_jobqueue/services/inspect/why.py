"""Explain in a sentence or two why a job is not running."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.timezone import localtime

from ...conf import get_settings
from ...engine import sql
from ...engine.claims import Target, database_of, id_of
from ...engine.databases import rows
from ...engine.missing_handlers import announced
from ...engine.transactions import in_transaction
from ...expressions import StatementTimestamp
from ...models import Job, Operation, Queue, Worker
from ...policies import ORDERED, QueuePolicy
from ...redaction import redacted_text
from ...states import BLOCKING, DEAD, FINAL, OCCUPIED, REDRIVABLE, RETRYING, RUNNING, UNHANDLED, Hold, JobState
from .jobs import get_job

MOST_NAMES = 3  # of workers


def why(
    job: Target,
    *,
    find_handler: Callable[[str, str], object] | None = None,
    queue: str | None = None,
    using: str | None = None,
) -> str:
    """Explain in a sentence or two why this job is not running, or how it ended. Raises ``JobNotFound``.

    A process that has discovered its handlers can pass :func:`django_jobqueue.handlers.find` as ``find_handler``. Then
    the answer also says if this code has no handler for the job.
    """
    using = database_of(job, using)
    stored = get_job(id_of(job), queue=queue, using=using)
    state = JobState(stored.state)
    if state in RUNNING:
        return _why_running(stored)
    if state not in REDRIVABLE:
        return _why_ended(stored)
    feeding = Queue.objects.filter(dead_letter=OuterRef("pk"))
    queues: Any = Queue.objects.using(using).annotate(keeps_dead_letters=Exists(feeding))
    found = queues.filter(pk=stored.queue_id).first()
    if found is not None and found.keeps_dead_letters and _waits_for_redrive(stored, using):
        return _why_dead_letter(stored)
    if state in FINAL:
        return _why_ended(stored)
    return in_transaction(using, partial(_why_waiting, stored, found, using, find_handler))  # planned by index


def _why_running(job: Job) -> str:
    who = f"worker {job.assignee!r}" if job.assignee else "a worker"
    text = f"It is running: {who} has held attempt {job.attempt} since {_time(job.assigned_at)}."
    if job.state == JobState.CANCELLING:
        text += " Its cancellation was requested, and the worker has not confirmed it yet."
    return text


def _why_ended(job: Job) -> str:
    text = f"It has ended: {job.get_state_display()} at {_time(job.finalized_at)}."
    if job.error_summary and job.state != JobState.COMPLETED:
        error = redacted_text(job.error_summary)
        text += f" {error}" if error.endswith((".", "!", "?", "…")) else f" {error}."
    if job.state in DEAD and job.policy == ORDERED:
        text += f" It blocks the key {job.singleton_key!r} until an operator retries or skips it."
    return text


def _waits_for_redrive(job: Job, using: str) -> bool:
    """Whether workers leave this dead letter to an operator."""
    return job.state in DEAD or not _live_workers(job, using).filter(queues__contains=[job.queue_id]).exists()


def _why_dead_letter(job: Job) -> str:
    if job.source_id is None:
        what = "It was sent to a queue of dead letters, but is no copy of another job"
        how = f"manage.py jobs redrive {job.queue_id} --to QUEUE sends it to a queue that you name"
    else:
        what = f"It is a dead letter: a copy of job {job.source_id} of {job.source_queue!r}, which failed for good"
        how = f"manage.py jobs redrive {job.queue_id} retries that job, or sends it again if it is gone"
    ended = f" {_why_ended(job)}" if job.state in FINAL else ""
    return f"{what}.{ended} It waits for an operator: {how}."


def _why_waiting(job: Job, queue: Queue | None, using: str, find_handler: Callable[[str, str], object] | None) -> str:
    if queue is None:
        return f"Its queue {job.queue_id!r} does not exist any more."
    if queue.is_paused:
        return f"The queue {queue.name!r} has been paused since {_time(queue.paused_at)}{_by_whom(queue, using)}."
    ahead = _ahead_in_lane(job, queue, using)
    if ahead is not None:
        return ahead
    now = rows(using, sql.session.MOMENT)[0][0]
    if job.hold == Hold.UNTIL and job.start_after > now:
        if _waits_for_handler(job):
            return _why_unhandled(job, using)
        what = "its next attempt" if job.state in RETRYING else "its start"
        return f"It waits until {_time(job.start_after)} for {what}."
    return (
        _no_worker(job, using)
        or _no_live_handler(job, using)
        or _no_handler(job, find_handler)
        or _place(job, using) + _ahead_in_group(job, using)
    )


def _by_whom(queue: Queue, using: str) -> str:
    """Which operator paused the queue and why, if that is known."""
    pauses = Operation.objects.using(using).filter(verb="pause", queue=queue.name, started_at__gte=queue.paused_at)
    pause = pauses.order_by("started_at").first()
    if pause is None:
        return ""
    reason = pause.reason.strip().rstrip(".")
    return (f", by {pause.operator!r}" if pause.operator else "") + (f": {reason}" if reason else "")


def _ahead_in_lane(job: Job, queue: Queue, using: str) -> str | None:
    if not queue.has_lanes:
        return None
    blocking = BLOCKING if queue.is_ordered else RUNNING
    lane = Job.objects.using(using).in_lane_of(job).filter(policy=job.policy).exclude(pk=job.pk)  # has its indexes
    other = lane.in_state(*blocking).order_by("seq").first()
    key = f"The key {job.singleton_key!r}" if job.singleton_key else f"The queue {queue.name!r}"
    if other is not None:
        return f"{key} is blocked by job #{other.seq}. {_what_it_does(other)}"
    if queue.is_ordered and job.state == JobState.CREATED:
        first = lane.in_state(JobState.CREATED).filter(seq__lt=job.seq)
        if queue.delayed_head == "pass":
            first = first.exclude(hold=Hold.UNTIL)
        earlier = first.order_by("seq").first()
        if earlier is not None:
            number = _jobs(first.count()).replace(" job", " earlier job")
            return f"{key} has {number}; the next is job #{earlier.seq}."
    return None


def _ahead_in_group(job: Job, using: str) -> str:
    """Which job of its group is fetched first by grouped reads. Other fetches ignore groups."""
    if not job.group_key or job.policy != QueuePolicy.STANDARD:
        return ""
    group = Job.objects.using(using).in_queue(job.queue_id).filter(group_key=job.group_key).exclude(group_key="")
    running = group.exclude(state__in=sorted(set(JobState) - RUNNING)).order_by("group_key").first()
    other = running or group.in_state(*OCCUPIED | DEAD).order_by("group_key", "seq").first()
    if other is None or other.pk == job.pk:
        return ""
    does = "That job is waiting too." if other.state == JobState.CREATED else _what_it_does(other)
    return f" But grouped reads take job #{other.seq} of the group {job.group_key!r} first. {does}"


def _what_it_does(other: Job) -> str:
    if other.state in DEAD:
        return f"That job failed for good at {_time(other.finalized_at)} ({_error(other)}): retry it or skip it."
    if other.state in RUNNING:
        return f"That job has been running since {_time(other.assigned_at)}."
    if _waits_for_handler(other):
        return f"That job waits for a worker that has its handler: {_error(other)}."
    return f"That job waits for its next attempt, which is due at {_time(other.start_after)}."


def _error(job: Job) -> str:
    return redacted_text(job.error_summary or "").removesuffix(".") or "no error text"


def _live_workers(job: Job, using: str) -> QuerySet[Worker]:
    """The live workers that take jobs of its queue."""
    limit = StatementTimestamp() - timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    live = Worker.objects.using(using).filter(stopped_at=None, heartbeat_at__gt=limit)
    return live.filter(Q(queues=[]) | Q(queues__contains=[job.queue_id]))


def _no_worker(job: Job, using: str) -> str | None:
    tags = list(_live_workers(job, using).values_list("tags", flat=True))
    if not tags:
        if not Worker.objects.using(using).exists():
            return "No worker is running, and none was running recently: start one with manage.py runjobs."
        return f"No live worker takes jobs of the queue {job.queue_id!r}."
    if not any(set(wanted) <= set(job.tags) for wanted in tags):
        return f"No live worker takes jobs with its tags ({', '.join(job.tags) or 'none'})."
    return None


def _no_live_handler(job: Job, using: str) -> str | None:
    """That no live worker has its handler, and which do not."""
    live = _live_workers(job, using)
    if live.filter(Q(handlers=None) | Q(handlers__contains=[announced((job.queue_id, job.name))])).exists():
        return None
    names = [repr(name) for name in live.order_by("name").values_list("name", flat=True)[: MOST_NAMES + 1]]
    if not names:
        return None
    who = ", ".join(names[:MOST_NAMES]) + (" and others" if len(names) > MOST_NAMES else "")
    lack = f"worker {who} lacks it" if len(names) == 1 else f"workers {who} lack it"
    what = f"a handler named {job.name!r}" if job.name else f"a handler for jobs of {job.queue_id!r} without a name"
    return f"No live worker has {what}; {lack}."


def _waits_for_handler(job: Job) -> bool:
    return job.state == JobState.RETRY and bool(job.attempts) and job.attempts[-1]["outcome"] == UNHANDLED


def _why_unhandled(job: Job, using: str) -> str:
    text = _no_worker(job, using) or _no_live_handler(job, using) or "It waited for its handler; a live worker has it."
    if job.start_after is None:
        return text
    return f"{text} It fails at {_time(job.start_after)}, unless a worker that has the handler starts before."


def _no_handler(job: Job, find_handler: Callable[[str, str], object] | None) -> str | None:
    if find_handler is None or find_handler(job.queue_id, job.name) is not None:
        return None
    if job.name:
        return f"This code has no handler named {job.name!r}: a worker that runs this code leaves the job to others."
    return f"The job names no handler, and this code has no default handler for the queue {job.queue_id!r}."


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
