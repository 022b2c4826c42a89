"""What operators must be told: blocked keys by error, stopped queues and late schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from ...counting import MANY
from ...engine import sql
from ...engine.databases import rows
from ...expressions import StatementTimestamp
from ...log_texts import one_line
from ...models import Job, Schedule
from ...redaction import redacted_text

MOST_ERRORS = 20  # that have a group of their own
MOST_KEYS = 100  # of a group whose waiting jobs are counted


class Kind(StrEnum):
    """What is wrong."""

    BLOCKED = "blocked"  # keys are blocked by the same error
    STOPPED = "stopped"  # jobs of a queue could run and do not
    LATE = "late"  # a schedule has not sent a job that was due


@dataclass(frozen=True, slots=True)
class FoundProblem:
    """A problem that lasts: the name tells it from others of its kind, the facts can be stored as JSON."""

    kind: Kind
    name: str
    latest_at: datetime
    facts: dict[str, Any]


@dataclass(slots=True)
class Found:
    """The problems that were found, and the kinds of which not all could be read."""

    problems: list[FoundProblem] = field(default_factory=list)
    unread: list[Kind] = field(default_factory=list)


def find_problems(*, after_seconds: float, using: str) -> Found:
    """All problems now; a queue is stopped, or a schedule is late, after that many seconds."""
    found = Found()
    _add_blocked(found, using)
    for queue, since, has_no_worker in rows(using, sql.alerts.STOPPED_QUEUES, {"seconds": after_seconds}):
        facts = {"queues": [queue], "since": since.isoformat(), "has_no_worker": has_no_worker}
        found.problems.append(FoundProblem(Kind.STOPPED, queue, since, facts))
    late = Schedule.objects.using(using).enabled()
    late = late.filter(next_at__lte=StatementTimestamp() - timedelta(seconds=after_seconds)).order_by("next_at")
    for schedule in late[: sql.alerts.MOST_AT_ONCE]:
        due: Any = schedule.next_at
        facts = {"queues": [schedule.queue_id], "since": due.isoformat(), "problem": schedule.problem}
        found.problems.append(FoundProblem(Kind.LATE, schedule.name, due, facts))
    return found


def _add_blocked(found: Found, using: str) -> None:
    limits = {"most": MANY, "groups": MOST_ERRORS, "keys": MOST_KEYS}
    groups = rows(using, sql.alerts.BLOCKED_BY_ERROR, limits)
    examples = Job.objects.using(using).only("error_summary", "reason", "singleton_key", "seq", "queue_id")
    by_id = examples.in_bulk([group[6] for group in groups])
    for name, number, errors, since, latest, queues, example, lanes, keys, is_capped in groups:
        facts = {
            "keys": number,
            "errors": errors,
            "is_capped": is_capped,
            "waiting": _waiting(lanes, keys, using),
            "counts_all": number <= MOST_KEYS and not is_capped,
            "queues": list(queues),
            "since": since.isoformat(),
            **_example(by_id.get(example)),
        }
        found.problems.append(FoundProblem(Kind.BLOCKED, name, latest, facts))
        if is_capped and Kind.BLOCKED not in found.unread:
            found.unread.append(Kind.BLOCKED)


def _waiting(queues: Sequence[str], keys: Sequence[str], using: str) -> int:
    params = {"queues": list(queues), "keys": list(keys), "most": MANY}
    return sum(number for _, _, number in rows(using, sql.inspect.WAITING_IN_LANES, params))


def _example(job: Job | None) -> dict[str, Any]:
    if job is None:  # deleted meanwhile
        return {"error": "", "key": "", "job": "", "number": None}
    return {"error": _summary(job), "key": job.singleton_key, "job": str(job.pk), "number": job.seq}


def _summary(job: Job) -> str:
    """The error in one line, without sensitive values."""
    return one_line(redacted_text(job.error_summary or "")) or str(job.reason or "")
