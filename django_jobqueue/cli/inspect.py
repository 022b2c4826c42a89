"""The read-only subcommands: list, show, why, blocked, stats, workers, operations."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from django.core.management.color import Style
from django.db.models import Count, F, Min, Q
from django.utils.dateparse import parse_datetime

from .. import handlers, services
from ..conf import get_settings
from ..displayed import shown_attempts, shown_data, shown_output, shown_summary
from ..exceptions import NotOrdered
from ..expressions import StatementTimestamp
from ..models import BlockedKey, Job, Operation, Queue, Worker
from ..querysets import JobQuerySet
from ..redaction import redacted, redacted_text
from ..services.inspect.lists import last_number
from ..services.queues import find_queue
from ..states import ELIGIBLE, JobState
from .answers import Answer, Code, facts, plural, state_in_colour, table
from .selection import filters_of, limit_of

SPANS = (10_000, 100_000)
LISTED = (
    "number",
    "id",
    "queue",
    "state",
    "key",
    "handler",
    "priority",
    "attempt",
    "created_at",
    "start_after",
    "error",
)


# ------------------------------------------------------------------------------------------------------------- jobs


def list_jobs(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Jobs, newest first by default."""
    jobs = Job.objects.using(using).selected(filters_of(options, using)).defer("data", "output", "error", "attempts")
    limit = limit_of(options)
    shown = jobs.order_by("seq")[:limit] if options["oldest"] else _newest(jobs, limit, using)
    listed = [brief(job) for job in shown]
    if not listed:
        return Answer({"jobs": []}, "No job was found.")
    lines = [[_numbered(name, job[name]) for name in LISTED] for job in listed]
    return Answer({"jobs": listed}, table([name.replace("_", " ") for name in LISTED], lines, style))


def _newest(jobs: JobQuerySet, limit: int | None, using: str) -> list[Job]:
    """The latest jobs. The latest sends are searched first, because the BRIN index finds them in a large table."""
    last = last_number(using=using)
    for span in SPANS if limit is not None else ():
        latest = list(jobs.filter(seq__gt=last - span).order_by("-seq")[:limit])
        if len(latest) == limit:
            return latest
    return list(jobs.order_by("-seq")[:limit])


def _numbered(name: str, value: Any) -> object:
    """The cell of a column; numbers of jobs are written as ``#154``, without separators."""
    return f"#{value}" if name == "number" else value


def brief(job: Job) -> dict[str, Any]:
    return {
        "number": job.seq,
        "id": job.pk,
        "queue": job.queue_id,
        "state": job.state,
        "hold": job.hold,
        "key": job.singleton_key,
        "group": job.group_key,
        "handler": job.name,
        "priority": job.priority,
        "tags": list(job.tags),
        "attempt": job.attempt,
        "retry_count": job.retry_count,
        "retry_limit": job.retry_limit,
        "worker": job.assignee,
        "created_at": job.created_at,
        "start_after": job.start_after,
        "finalized_at": job.finalized_at,
        "reason": job.reason,
        "error": shown_summary(job),
    }


_TIMES = ("started_at", "assigned_at", "expire_at", "lease_until", "heartbeat_at", "attempt_finished_at",
    "last_retry_at", "cancel_requested_at", "delete_at")  # fmt: skip
_OPTIONS = ("retry_delay", "retry_delay_max", "retry_backoff", "expire_in_seconds", "heartbeat_seconds",
    "retention_seconds", "delete_after_seconds", "delete_failed_after_seconds")  # fmt: skip
_MORE = ("seq", "position", "policy", "crashes", "incarnation", "claim_number", "moved_xid", "progress",
    "progress_text", "note", "fingerprint", "source_id", "source_queue", "source_key", "carried")  # fmt: skip


def show(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Everything about a job, and why it is not running."""
    job = services.find_job(options["id"], using=using)
    document = brief(job) | {name: getattr(job, name) for name in (*_TIMES, *_OPTIONS, *_MORE)}
    document |= {
        "data": job.data if options["data"] else shown_data(job),
        "output": job.output if options["data"] else shown_output(job),
        "error": job.error if options["data"] else redacted_text(job.error),
        "error_summary": shown_summary(job),
        "attempts": job.attempts if options["data"] else shown_attempts(job),
        "note": job.note if options["data"] else redacted_text(job.note),
        "progress_text": job.progress_text if options["data"] else redacted_text(job.progress_text),
        "carried": job.carried if options["data"] else redacted(job.carried),
        "why": services.why(job, find_handler=handlers.discovered(), using=using),
    }
    pairs = [(name.replace("_", " "), value) for name, value in document.items() if name not in ("attempts", "why")]
    pairs = [(name, _numbered(name, value)) for name, value in pairs]
    pairs = [(name, state_in_colour(str(value), style) if name == "state" else value) for name, value in pairs]
    parts = [facts([("why", document["why"]), *pairs], style)]
    if job.attempts:
        head = ("attempt", "worker", "started", "ended", "outcome", "error")
        lines = [
            [_cell(name, attempt.get(name)) for name in (*head[:-1], "error_summary")]
            for attempt in shown_attempts(job)
        ]
        parts += ["", style.MIGRATE_HEADING("Attempts that did not succeed"), table(head, lines, style)]
    return Answer(document, "\n".join(parts))


def _cell(name: str, value: Any) -> object:
    """A fact of an attempt for a cell; its times are stored as text."""
    if name in ("started", "ended") and isinstance(value, str):
        return parse_datetime(value) or value
    return value


def why(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Why a job is not running, in a sentence."""
    job = services.find_job(options["id"], using=using)
    sentence = services.why(job, find_handler=handlers.discovered(), using=using)
    document = {"number": job.seq, "id": job.pk, "queue": job.queue_id, "state": job.state, "why": sentence}
    return Answer(document, sentence)


# ----------------------------------------------------------------------------------------------------------- blocked


def blocked(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Blocked keys, the longest blocked first."""
    keys: Any = BlockedKey.objects.using(using).all()
    if options["queue"] is not None:
        queue = find_queue(options["queue"], using)
        if not queue.is_ordered:
            raise NotOrdered(queue.name, queue.policy)
        keys = keys.filter(queue=queue)
    listed = [_blocked(key) for key in keys.with_waiting().order_by("finalized_at", "seq")[: limit_of(options)]]
    if not listed:
        return Answer({"blocked": []}, "No key is blocked.")
    shown = ("key", "queue", "number", "since", "waiting", "oldest_waiting_at", "error")
    lines = [[_numbered(name, key[name]) for name in shown] for key in listed]
    head = [name.replace("_", " ") for name in shown]
    summary = (
        f"{plural(len(listed), 'blocked key')}. "
        "Retry or skip the jobs: manage.py jobs retry NUMBER, or manage.py jobs skip NUMBER --reason WHY."
    )
    return Answer({"blocked": listed}, f"{table(head, lines, style)}\n\n{summary}", Code.FOUND)


def _blocked(key: Any) -> dict[str, Any]:
    return {
        "key": key.singleton_key,
        "queue": key.queue_id,
        "number": key.seq,
        "job": key.pk,
        "state": key.state,
        "reason": key.reason,
        "error": shown_summary(key),
        "since": key.blocked_since,
        "waiting": key.waiting,
        "oldest_waiting_at": key.oldest_waiting_at,
    }


# ------------------------------------------------------------------------------------------------------------- stats


def stats(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Jobs per queue and state, counted now."""
    queues = Queue.objects.using(using).order_by("name")
    jobs = Job.objects.using(using).all()
    if options["queue"] is not None:
        name = find_queue(options["queue"], using).name
        queues, jobs = queues.filter(pk=name), jobs.in_queue(name)
    counted = _counted(jobs)
    listed = [_of_queue(queue, counted.get(queue.name, {})) for queue in queues]
    return Answer({"queues": listed}, _stats_table(listed, style))


def _counted(jobs: Any) -> dict[str, dict[str, Any]]:
    waiting = Q(state__in=sorted(ELIGIBLE))
    grouped = (
        jobs.order_by()
        .values("queue_id", "state")
        .annotate(number=Count("*"), oldest=Min("created_at", filter=waiting), now=StatementTimestamp())
    )
    counted: dict[str, dict[str, Any]] = {}
    for row in grouped:
        counted.setdefault(row["queue_id"], {})[row["state"]] = row
    return counted


def _of_queue(queue: Queue, by_state: dict[str, Any]) -> dict[str, Any]:
    ages = [row["now"] - row["oldest"] for row in by_state.values() if row["oldest"] is not None]
    states = {state.value: by_state.get(state, {}).get("number", 0) for state in JobState}
    return {
        "queue": queue.name,
        "policy": queue.policy,
        "paused_at": queue.paused_at,
        "states": states,
        "total": sum(states.values()),
        "oldest_waiting_seconds": max(ages, default=None),
    }


def _stats_table(listed: list[dict[str, Any]], style: Style) -> str:
    used = [state.value for state in JobState if any(queue["states"][state] for queue in listed)]
    head = ["queue", "policy", *(state.replace("_", " ") for state in used), "total", "oldest waiting", "paused since"]
    lines = [
        [queue["queue"], queue["policy"], *(queue["states"][state] for state in used), queue["total"],
         queue["oldest_waiting_seconds"], queue["paused_at"]]
        for queue in listed
    ]  # fmt: skip
    return table(head, lines, style)


# ----------------------------------------------------------------------------------------------------------- workers


def workers(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Workers that are alive, stopping, silent or stopped, and how many jobs each holds."""
    order = (F("stopped_at").desc(nulls_first=True), "name", "started_at")
    seen = Worker.objects.using(using).annotate(now=StatementTimestamp()).order_by(*order)
    if not options["all"]:
        seen = seen.filter(Q(stopped_at=None) | Q(stopped_at__gt=StatementTimestamp() - timedelta(days=1)))
    held = Job.objects.using(using).running().order_by().values_list("incarnation").annotate(n=Count("*"))
    jobs = Counter(dict(held))
    listed = [_worker(worker, jobs[worker.pk]) for worker in seen[: limit_of(options)]]
    if not listed:
        return Answer({"workers": []}, "No worker is running or ran in the last day. Start one: manage.py runjobs.")
    head = {
        "name": "name", "state": "state", "jobs": "jobs", "capacity": "capacity", "queues": "queues", "tags": "tags",
        "host": "host", "pid": "pid", "started_at": "started", "silent_seconds": "silent for",
        "exit_text": "exit",
    }  # fmt: skip
    lines = [[str(worker["pid"] or "") if key == "pid" else worker[key] for key in head] for worker in listed]
    return Answer({"workers": listed}, table(list(head.values()), lines, style))


def _worker(worker: Any, jobs: int) -> dict[str, Any]:
    silent = worker.now - worker.heartbeat_at
    return {
        "id": worker.pk,
        "name": worker.name,
        "state": _state_of(worker, silent),
        "jobs": jobs,
        "capacity": worker.capacity,
        "queues": list(worker.queues) or ["all"],
        "tags": list(worker.tags),
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "silent_seconds": None if worker.stopped_at else max(silent, timedelta(0)),
        "stopping_at": worker.stopping_at,
        "stopped_at": worker.stopped_at,
        "exit_text": worker.exit_text,
    }


def _state_of(worker: Worker, silent: timedelta) -> str:
    if worker.stopped_at is not None:
        return "stopped"
    if silent > timedelta(seconds=get_settings().WORKER_LOST_SECONDS):
        return "silent"
    return "stopping" if worker.stopping_at is not None else "alive"


# ------------------------------------------------------------------------------------------------------- operations

_RECORDED = ("id", "verb", "operator", "state", "moved", "refused", "started_at", "finished_at", "reason")


def operations(options: dict[str, Any], style: Style, using: str) -> Answer:
    """Operations, the latest first, and their progress."""
    recorded = Operation.objects.using(using).order_by("-pk").values(*_RECORDED)
    listed = list(recorded[: limit_of(options)])
    if not listed:
        return Answer({"operations": []}, "There are no operations.")
    lines = [[operation[name] for name in _RECORDED] for operation in listed]
    return Answer({"operations": listed}, table([name.replace("_", " ") for name in _RECORDED], lines, style))
