"""The first page: what needs attention, throughput and latency. Refreshing an open page costs less than a fetch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.admin.utils import quote
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from ..doctor import Level
from ..doctor.findings import Finding, Limits, findings_of
from ..doctor.server import open_transactions
from ..doctor.upkeep import maintenance, schedules
from ..doctor.work import blocked_keys, overdue_jobs, silent_workers, waiting_without_worker
from ..models import BlockedKey, Report
from ..services.inspect.backlog import backlogs, pulse
from ..services.inspect.jobs import job_database
from .base import page_url
from .blocked_keys import with_behind
from .charts import PERIODS, charts, steps_of
from .figures import Figures, all_queues, figures_of

UrlOf = Callable[..., str]  # the URL of one of our pages, by its name and arguments

SHOWN = 5
KEPT_SECONDS = {"1h": 20, "24h": 60, "7d": 300}  # how long the charts of a period are cached

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
class AttentionItem:
    """Something that needs attention, with a link."""

    level: str
    title: str
    detail: str
    url: str


def site_of(request: HttpRequest) -> str:
    """The name of the admin site whose page was requested."""
    match = request.resolver_match
    return match.namespace if match else "admin"


def may_look(request: HttpRequest) -> bool:
    return request.user.has_perm("jobqueue.view_job")


def overview_view(request: HttpRequest) -> HttpResponse:
    """The part of the first page that is refreshed."""
    if not may_look(request):
        raise PermissionDenied
    return TemplateResponse(request, "admin/jobqueue/overview_body.html", overview(request))


def pulse_view(request: HttpRequest) -> HttpResponse:
    """A hash that changes when there is something new, and how many jobs run."""
    if not may_look(request):
        raise PermissionDenied
    mark, running = pulse(using=job_database())
    return JsonResponse({"pulse": mark, "running": running})


def overview(request: HttpRequest) -> dict[str, Any]:
    using = job_database()
    url = partial(page_url, site_of(request))
    period = PERIODS.get(request.GET.get("period", ""), PERIODS["1h"])
    names = all_queues(using)
    queue = request.GET.get("queue", "")
    chosen = [queue] if queue in names else names
    figures = figures_of(names, using=using)
    mark, running = pulse(using=using)
    blocked = list(BlockedKey.objects.using(using).defer("data", "output", "attempts").order_by("finalized_at")[:SHOWN])
    return {
        "items": attention_items(figures, using, url),
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
        "jobs_url": url("job_changelist"),
        "blocked_url": url("blockedkey_changelist"),
    }


def _total(of_queues: list[Figures]) -> Figures:
    total = Figures()
    for figures in of_queues:
        total.waiting += figures.waiting
        total.is_capped |= figures.is_capped
        total.running += figures.running
        total.sent += figures.sent
        total.completed += figures.completed
        total.failed += figures.failed
        if figures.oldest_seconds is not None:
            total.oldest_seconds = max(total.oldest_seconds or 0.0, figures.oldest_seconds)
    return total


def _charts(period: str, queues: list[str], using: str) -> Any:
    """The charts, from cached steps, because minutes are counted once a minute."""
    name = hashlib.sha256(repr((using, period, queues)).encode()).hexdigest()
    key = f"jobqueue-charts-{name}"
    steps = cache.get(key)
    if steps is None:
        steps = steps_of(PERIODS[period], queues, using=using)
        cache.set(key, steps, KEPT_SECONDS[period])
    return charts(steps, PERIODS[period])


# --------------------------------------------------------------------------------------------------- needs attention


def attention_items(figures: dict[str, Figures], using: str, url: UrlOf) -> list[AttentionItem]:
    """What needs attention, the worst first."""
    limits = Limits()
    findings = [finding for look in _BY_INDEX for finding in findings_of(look, using, limits, by_index=True)]
    findings += findings_of(open_transactions, using, limits)
    items = [_item_of(finding, url) for finding in findings]
    items += _failing(figures, url)
    items += _backlogs(using, url)
    order = [level.value for level in (Level.ERROR, Level.WARNING, Level.NOTICE)]
    return sorted(items, key=lambda item: order.index(item.level))


def _item_of(finding: Finding, url: UrlOf) -> AttentionItem:
    """The doctor's finding, with a link to the page on which it can be looked at."""
    address = url(f"{_LINKS.get(finding.code, 'maintenance')}_changelist")
    if finding.code == "dead_letters":
        address = url("queue_redrive", quote(finding.facts["queue"]))
    return AttentionItem(finding.level.value, finding.title, finding.detail, address)


def _failing(figures: dict[str, Figures], url: UrlOf) -> list[AttentionItem]:
    """Queues in which at least as many jobs failed for good as completed."""
    return [
        AttentionItem(
            Level.ERROR.value,
            _("Most jobs of %s fail") % name,
            _("%(failed)s failed for good in the last hour, %(completed)s completed.")
            % {"failed": f"{counts.failed:,}", "completed": f"{counts.completed:,}"},
            url("failuregroup_changelist"),
        )
        for name, counts in figures.items()
        if counts.failed and counts.failed >= counts.completed
    ]


def _backlogs(using: str, url: UrlOf) -> list[AttentionItem]:
    """Queues in which, at the end of the last minute, more jobs waited than their backlog warning allows."""
    return [
        AttentionItem(
            Level.WARNING.value,
            _("Many jobs wait in %s") % name,
            _("%(waiting)s jobs wait; the backlog warning of the queue is %(limit)s.")
            % {"waiting": f"{waiting:,}", "limit": f"{limit:,}"},
            url("queue_changelist"),
        )
        for name, waiting, limit in backlogs(using=using)
    ]
