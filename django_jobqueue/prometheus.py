"""Metrics for Prometheus: how many jobs wait, run, failed or block a key, and how long they waited and ran.

Needs the extra ``prometheus``. The cost of a scrape hardly depends on the number of jobs: waiting jobs are counted
along their indexes up to a limit, and past jobs are read from the totals that maintenance keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from .conf import get_settings
from .expressions import StatementTimestamp
from .log_texts import error_line, error_text
from .models import Maintenance, Queue, QueueTotal, Schedule, Worker
from .policies import ORDERED
from .services.inspect import backlog
from .services.inspect.jobs import job_database
from .services.inspect.lists import by_index
from .states import DEAD, ELIGIBLE, RUNNING, Hold
from .statistics import BOUNDS, COUNTERS, sum_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger("django_jobqueue.prometheus")

MOST = 10_000  # a scrape counts at most so many jobs of each queue and kind; the true number may be larger
MOST_RUNNING = 100_000
STATEMENT_MS = 1_000
LATE = timedelta(seconds=60)


class _Family(NamedTuple):
    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES: Mapping[str, _Family] = {
    "jobqueue_jobs": _Family("gauge", "Unfinished jobs, and jobs that failed for good.", ("queue", "state")),
    "jobqueue_jobs_fetchable": _Family("gauge", "Waiting jobs without a hold.", ("queue",)),
    "jobqueue_jobs_held": _Family("gauge", "Waiting jobs held until their time, or by their lane.", ("queue", "hold")),
    "jobqueue_oldest_fetchable_seconds": _Family("gauge", "How long the oldest fetchable job has waited.", ("queue",)),
    "jobqueue_blocked_keys": _Family("gauge", "Keys that wait for an operator.", ("queue",)),
    "jobqueue_oldest_blocked_key_seconds": _Family("gauge", "How long the oldest of them is blocked.", ("queue",)),
    "jobqueue_queue_paused": _Family("gauge", "1 while the queue is paused.", ("queue",)),
    "jobqueue_sent": _Family("counter", "Jobs sent, up to the last complete minute.", ("queue",)),
    "jobqueue_started": _Family("counter", "Jobs whose first attempt began.", ("queue",)),
    "jobqueue_completed": _Family("counter", "Jobs that completed.", ("queue",)),
    "jobqueue_failed": _Family("counter", "Jobs that failed for good.", ("queue",)),
    "jobqueue_retried": _Family("counter", "Failed attempts that are followed by another.", ("queue",)),
    "jobqueue_waited_seconds": _Family("histogram", "How long jobs had waited when they started.", ("queue",)),
    "jobqueue_ran_seconds": _Family("histogram", "How long the last attempt of finished jobs took.", ("queue",)),
    "jobqueue_workers": _Family("gauge", "Worker processes that are alive."),
    "jobqueue_worker_capacity": _Family("gauge", "How many handlers all workers can run at once."),
    "jobqueue_schedules": _Family("gauge", "Enabled schedules."),
    "jobqueue_schedules_late": _Family("gauge", "Schedules with a slot due for more than a minute."),
    "jobqueue_schedule_lateness_seconds": _Family("gauge", "How late the most delayed schedule is."),
    "jobqueue_maintenance_age_seconds": _Family("gauge", "How long ago the last pass of maintenance ended."),
    "jobqueue_maintenance_failed_steps": _Family("gauge", "Steps of the last pass that failed."),
    "jobqueue_scrape_errors": _Family("gauge", "Parts of this scrape that are missing because reading them failed."),
}

# --------------------------------------------------------------------------------------------- reading the database


_Sample = tuple[str, tuple[str, ...], Any]  # the family, its labels, and the value or histogram


def _queues(using: str, most: int) -> Iterator[_Sample]:
    for name, paused_at in Queue.objects.using(using).values_list("name", "paused_at"):
        yield "jobqueue_queue_paused", (name,), float(paused_at is not None)


def _waiting(using: str, most: int) -> Iterator[_Sample]:
    for name in Queue.objects.using(using).values_list("name", flat=True):
        yield from (("jobqueue_jobs", (name, state.value), 0) for state in sorted(ELIGIBLE))
        yield from (("jobqueue_jobs_held", (name, hold.value), 0) for hold in Hold)
        yield "jobqueue_jobs_fetchable", (name,), 0
    for queue, state, hold, number in backlog.waiting(most=most, using=using):
        yield "jobqueue_jobs", (queue, state), number
        yield ("jobqueue_jobs_held", (queue, hold), number) if hold else ("jobqueue_jobs_fetchable", (queue,), number)


def _running(using: str, most: int) -> Iterator[_Sample]:
    for name in Queue.objects.using(using).values_list("name", flat=True):
        yield from (("jobqueue_jobs", (name, state.value), 0) for state in sorted(RUNNING))
    for queue, state, number in backlog.running(most=max(most, MOST_RUNNING), using=using):
        yield "jobqueue_jobs", (queue, state), number


def _dead(using: str, most: int) -> Iterator[_Sample]:
    oldest: dict[str, float] = {}
    for name, policy in Queue.objects.using(using).values_list("name", "policy"):
        yield from (("jobqueue_jobs", (name, state.value), 0) for state in sorted(DEAD))
        if policy == ORDERED:
            yield "jobqueue_blocked_keys", (name,), 0
            oldest[name] = 0.0
    for queue, policy, state, number, seconds in backlog.dead(most=most, using=using):
        yield "jobqueue_jobs", (queue, state), number
        if policy == ORDERED:  # where each of these jobs blocks a key
            yield "jobqueue_blocked_keys", (queue,), number
            oldest[queue] = max(oldest.get(queue, 0.0), seconds)
    for queue, seconds in oldest.items():
        yield "jobqueue_oldest_blocked_key_seconds", (queue,), seconds


def _oldest(using: str, most: int) -> Iterator[_Sample]:
    found = backlog.oldest_fetchable(using=using)
    for name in Queue.objects.using(using).values_list("name", flat=True):
        yield "jobqueue_oldest_fetchable_seconds", (name,), found.get(name, 0.0)


def _totals(using: str, most: int) -> Iterator[_Sample]:
    for total in QueueTotal.objects.using(using).order_by("queue_id"):
        for name in COUNTERS:
            yield f"jobqueue_{name}", (total.queue_id,), getattr(total, name)
        yield "jobqueue_waited_seconds", (total.queue_id,), total.waited
        yield "jobqueue_ran_seconds", (total.queue_id,), total.ran


def _workers(using: str, most: int) -> Iterator[_Sample]:
    silent = StatementTimestamp() - timedelta(seconds=get_settings().WORKER_LOST_SECONDS)
    alive = Worker.objects.using(using).filter(stopped_at=None, heartbeat_at__gt=silent)
    capacities = list(alive.values_list("capacity", flat=True))
    yield "jobqueue_workers", (), len(capacities)
    yield "jobqueue_worker_capacity", (), sum(capacities)


def _schedules(using: str, most: int) -> Iterator[_Sample]:
    late_by = StatementTimestamp() - F("next_at")
    on = Schedule.objects.using(using).filter(enabled=True).annotate(late_by=late_by)
    seconds = [late.total_seconds() for late in on.values_list("late_by", flat=True) if late is not None]
    late = [each for each in seconds if each > LATE.total_seconds()]
    yield "jobqueue_schedules", (), on.count()
    yield "jobqueue_schedules_late", (), len(late)
    yield "jobqueue_schedule_lateness_seconds", (), max(late, default=0.0)


def _maintenance(using: str, most: int) -> Iterator[_Sample]:
    ended = Maintenance.objects.using(using).filter(ended_at__isnull=False)
    for age, report in ended.annotate(age=StatementTimestamp() - F("ended_at")).values_list("age", "report"):
        yield "jobqueue_maintenance_age_seconds", (), age.total_seconds()
        failed = [step for step in report.get("steps", ()) if step.get("error")]
        yield "jobqueue_maintenance_failed_steps", (), len(failed)


PARTS: tuple[Callable[[str, int], Iterable[_Sample]], ...] = (
    _queues, _waiting, _running, _dead, _oldest, _totals, _workers, _schedules, _maintenance,
)  # fmt: skip


def read(using: str, most: int) -> Iterator[_Sample]:
    """Read all parts in one transaction. A part that fails or takes too long is logged and left out."""

    def work() -> list[_Sample]:
        found: list[_Sample] = []
        errors = 0
        for part in PARTS:
            try:
                with transaction.atomic(using=using):
                    found += list(part(using, most))
            except DatabaseError as error:
                errors += 1
                logger.warning(
                    "metrics are incomplete: reading %s failed: %s",
                    part.__name__.strip("_"),
                    error_line(error),
                    extra={"part": part.__name__, "error": error_text(error)},
                    exc_info=True,
                )
        return [*found, ("jobqueue_scrape_errors", (), errors)]

    yield from by_index(work, statement_ms=STATEMENT_MS, using=using)


# -------------------------------------------------------------------------------------------- collector and view


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise ImproperlyConfigured(
            "Metrics need the extra 'prometheus': pip install 'django-jobqueue[prometheus]'."
        ) from error
    return prometheus_client


class JobQueueCollector:
    """A custom collector for a registry of ``prometheus_client``: ``REGISTRY.register(JobQueueCollector())``.

    Numbers of waiting jobs are exact up to ``most`` jobs of each queue and kind. Raises ``ImproperlyConfigured``
    without the extra.
    """

    def __init__(self, *, using: str | None = None, most: int = MOST) -> None:
        _client()
        self.using, self.most = using, most

    def describe(self) -> Iterator[Metric]:
        """The metrics without values: registering the collector then needs no database."""
        return iter(_families().values())

    def collect(self) -> Iterator[Metric]:
        """Read the database and yield all metrics."""
        families = _families()
        sums: dict[tuple[str, tuple[str, ...]], Any] = {}
        for name, labels, value in read(job_database(self.using), self.most):
            key = name, labels
            sums[key] = value if isinstance(value, list) else sums.get(key, 0) + value
        for (name, labels), value in sums.items():
            if isinstance(value, list):
                families[name].add_metric(labels, _buckets(value), sum_of(value))
            else:
                families[name].add_metric(labels, value)
        return iter(families.values())


def _families() -> dict[str, Any]:
    core = _client().metrics_core
    kinds = {
        "gauge": core.GaugeMetricFamily,
        "counter": core.CounterMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    return {name: kinds[one.kind](name, one.help, labels=one.labels) for name, one in FAMILIES.items()}


def _buckets(histogram: list[int]) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus expects them."""
    upto = list(accumulate([*histogram, *[0] * (len(BOUNDS) + 1 - len(histogram))]))
    return [(str(bound), number) for bound, number in zip([*BOUNDS, "+Inf"], upto, strict=True)]


def metrics_text(using: str | None = None) -> bytes:
    """All metrics in the text format of Prometheus. Raises ``ImproperlyConfigured`` without the extra."""
    client = _client()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(JobQueueCollector(using=using))
    text: bytes = client.generate_latest(registry)
    return text


@require_safe
def metrics_view(request: HttpRequest, using: str | None = None) -> HttpResponse:
    """A view for ``urls.py``. All clients that can open it see the names of queues."""
    return HttpResponse(metrics_text(using), content_type=_client().CONTENT_TYPE_LATEST)
