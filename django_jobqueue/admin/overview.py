"""The first page: what needs a person, then how it goes; refreshed while it is open, for less than a fetch costs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ..doctor import Level
from ..doctor.findings import Finding, Limits, looked
from ..doctor.server import open_transactions
from ..doctor.upkeep import maintenance, schedules
from ..doctor.work import blocked_keys, overdue_jobs, silent_workers, waiting_without_worker
from ..models import BlockedKey, Queue, Report
from ..services.inspect.backlog import backlogs, pulse
from ..services.inspect.jobs import job_database
from .blocked_keys import with_behind
from .charts import PERIODS, charts, steps_of
from .figures import Figures, all_queues, figures_of

SHOWN = 5
KEPT_SECONDS = {"1h": 20, "24h": 60, "7d": 300}  # how long the charts of a period are drawn only once

_BY_INDEX = (blocked_keys, silent_workers, waiting_without_worker, overdue_jobs, maintenance, schedules)
_LINKS = {
    "blocked_keys": "blockedkey",
    "worker_silent": "worker",
    "no_worker": "worker",
    "queue_paused": "queue",
    "overdue_jobs": "job",
    "schedule_late": "schedule",
    "schedule_broken": "schedule",
}


@dataclass(frozen=True)
class Trouble:
    """Something that needs a person."""

    level: str
    title: str
    detail: str
    url: str


def may_look(request: HttpRequest) -> bool:
    return request.user.has_perm("jobqueue.view_job")


def overview_view(request: HttpRequest) -> HttpResponse:
    """The part of the first page that is drawn anew."""
    if not may_look(request):
        raise PermissionDenied
    return TemplateResponse(request, "admin/jobqueue/overview_body.html", overview(request))


def pulse_view(request: HttpRequest) -> HttpResponse:
    """A mark that is another one when there is something new, and how many jobs run."""
    if not may_look(request):
        raise PermissionDenied
    mark, running = pulse(using=job_database())
    return JsonResponse({"pulse": mark, "running": running})


def overview(request: HttpRequest) -> dict[str, Any]:
    using = job_database()
    period = PERIODS.get(request.GET.get("period", ""), PERIODS["1h"])
    names = all_queues(using)
    queue = request.GET.get("queue", "")
    chosen = [queue] if queue in names else names
    figures = figures_of(names, using=using)
    mark, running = pulse(using=using)
    blocked = list(BlockedKey.objects.using(using).defer("data", "output", "attempts").order_by("finalized_at")[:SHOWN])
    return {
        "troubles": troubles(figures, using),
        "blocked": with_behind(blocked),
        "figures": sorted(figures.items()),
        "total": _total([figures[name] for name in chosen]),
        "running": running,
        "pulse": mark,
        "charts": _charts(period.name, chosen, using),
        "report": Report.objects.using(using).defer("page").first(),
        "period": period,
        "periods": list(PERIODS.values()),
        "queue": queue if queue in names else "",
        "names": names,
        "jobs_url": reverse("admin:jobqueue_job_changelist"),
        "blocked_url": reverse("admin:jobqueue_blockedkey_changelist"),
    }


def _total(found: list[Figures]) -> Figures:
    total = Figures()
    for one in found:
        total.waiting += one.waiting
        total.is_capped |= one.is_capped
        total.running += one.running
        total.sent += one.sent
        total.completed += one.completed
        total.failed += one.failed
        if one.oldest_seconds is not None:
            total.oldest_seconds = max(total.oldest_seconds or 0.0, one.oldest_seconds)
    return total


def _charts(period: str, queues: list[str], using: str) -> Any:
    """Minutes are counted once a minute, so drawing them more often would show nothing new."""
    name = hashlib.sha256(repr((using, period, queues)).encode()).hexdigest()
    key = f"jobqueue-charts-{name}"
    found = cache.get(key)
    if found is None:
        found = steps_of(PERIODS[period], queues, using=using)
        cache.set(key, found, KEPT_SECONDS[period])
    return charts(found, PERIODS[period])


# ----------------------------------------------------------------------------------------------- what needs a person


def troubles(figures: dict[str, Figures], using: str) -> list[Trouble]:
    """The worst first."""
    limits = Limits()
    found = [finding for look in _BY_INDEX for finding in looked(look, using, limits, by_index=True)]
    found += looked(open_transactions, using, limits)
    letters = set(Queue.objects.using(using).exclude(dead_letter=None).values_list("dead_letter_id", flat=True))
    told = [_told(finding, letters) for finding in found]
    told += _failing(figures)
    told += _backlogs(using)
    order = [level.value for level in (Level.ERROR, Level.WARNING, Level.NOTICE)]
    return sorted(told, key=lambda trouble: order.index(trouble.level))


def _told(finding: Finding, letters: set[str]) -> Trouble:
    """As the doctor says it; only that nobody works on dead letters is how it is meant: they wait for a person."""
    queue = str(finding.facts.get("queue", ""))
    if finding.code == "no_worker" and queue in letters:
        url = f"{reverse('admin:jobqueue_job_changelist')}?{urlencode({'queue': queue, 'state': 'waiting'})}"
        return Trouble(
            Level.NOTICE.value, _("Dead letters wait in %s") % queue, _("Look at them, then delete them."), url
        )
    screen = _LINKS.get(finding.code, "maintenance")
    url = reverse(f"admin:jobqueue_{screen}_changelist")
    return Trouble(finding.level.value, finding.title, finding.detail, url)


def _failing(figures: dict[str, Figures]) -> list[Trouble]:
    """Queues in which more jobs fail for good than complete."""
    url = reverse("admin:jobqueue_failuregroup_changelist")
    return [
        Trouble(
            Level.ERROR.value,
            _("Jobs of %s fail") % name,
            _("%(failed)s failed for good in the last hour, %(completed)s completed.")
            % {"failed": f"{one.failed:,}", "completed": f"{one.completed:,}"},
            url,
        )
        for name, one in figures.items()
        if one.failed and one.failed >= one.completed
    ]


def _backlogs(using: str) -> list[Trouble]:
    """Queues that were longer at the end of the last minute than their warning allows."""
    url = reverse("admin:jobqueue_queue_changelist")
    return [
        Trouble(
            Level.WARNING.value,
            _("%s is long") % name,
            _("%(waiting)s jobs wait; you asked to be warned from %(limit)s on.")
            % {"waiting": f"{waiting:,}", "limit": f"{limit:,}"},
            url,
        )
        for name, waiting, limit in backlogs(using=using)
    ]
