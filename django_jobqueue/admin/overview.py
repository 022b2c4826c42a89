"""The first page: whether anything is wrong, what is blocked and why, figures and charts. It is kept up to date."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.admin import AdminSite
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..counting import MANY
from ..doctor import Level
from ..doctor.findings import Finding, Limits, findings_of
from ..doctor.server import open_transactions
from ..doctor.upkeep import maintenance, schedules
from ..doctor.work import overdue_jobs, silent_workers, waiting_without_worker
from ..models import Report
from ..services.inspect.backlog import MOST_RUNNING, first_fetchable, pulse
from ..services.inspect.blocked import MOST_BEHIND, BlockedGroup, blocked_groups
from ..services.inspect.jobs import job_database
from ..services.inspect.lists import by_index
from ..services.inspect.overview import QueueNow, count_waiting, queues
from .base import page_url
from .blocked_groups import rows_of
from .charts import MINUTE, PERIODS, Period, Step, bounds_of, charts, local, spark, steps_as_json, steps_of, table
from .findings import UrlOf, url_of
from .wording import duration, many

SHOWN = 12  # groups of blocked keys
MOST_WAITING = 1_000  # waiting jobs of a queue and kind that are counted
KEPT_SECONDS = {"1h": 20, "6h": 60, "24h": 60, "7d": 300, "30d": 600}  # how long the charts of a period are cached

_LOOKS = (silent_workers, waiting_without_worker, overdue_jobs, maintenance, schedules, open_transactions)


@dataclass(frozen=True)
class AttentionItem:
    """Something that needs attention, with a link."""

    level: str
    title: str
    detail: str
    url: str


@dataclass(frozen=True)
class Tile:
    """A figure that links to what it counts."""

    name: str
    label: str
    text: str
    url: str
    note: str = ""
    line: SafeString | str = ""  # how it went over the period
    is_bad: bool = False


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
    """A hash that changes when there is something new, how many jobs run, and the time. It is one statement."""
    if not may_look(request):
        raise PermissionDenied
    beat = pulse(request.GET.get("queue") or None, using=job_database())
    return JsonResponse({"pulse": beat.mark, "running": many(beat.running, MOST_RUNNING), "at": _clock(timezone.now())})


def figures_view(request: HttpRequest, site: AdminSite) -> HttpResponse:
    """The numbers of the charts as a table, each with a link to its jobs."""
    if not may_look(request):
        raise PermissionDenied
    using, period, queue = job_database(), _period(request), request.GET.get("queue", "")
    drawn = charts(_steps(period, queue, pulse(using=using).counted_until, using), period, queue)
    context = {
        **site.each_context(request),
        "title": _("Figures of %s") % (queue or _("all queues")),
        "charts": drawn,
        "rows": table(drawn),
        "period": period,
        "periods": list(PERIODS.values()),
        "queue": queue,
        "jobs_url": page_url(site_of(request), "job_changelist"),
    }
    return TemplateResponse(request, "admin/jobqueue/figures.html", context)


def overview(request: HttpRequest) -> dict[str, Any]:
    """The first page, for one queue or for all. All questions are asked in one transaction."""
    using = job_database()
    try:
        return by_index(partial(_overview, request, using, _found_together), using=using)
    except DatabaseError:  # perhaps of a single check, of which the others are independent
        return by_index(partial(_overview, request, using, _found_apart), using=using)


def _found_together(using: str) -> list[Finding]:
    return [finding for look in _LOOKS for finding in look(using, Limits())]


def _found_apart(using: str) -> list[Finding]:
    return [finding for look in _LOOKS for finding in findings_of(look, using, Limits(), by_index=True)]


def _overview(request: HttpRequest, using: str, found: Callable[[str], list[Finding]]) -> dict[str, Any]:
    url: UrlOf = partial(page_url, site_of(request))
    period = _period(request)
    begin = period.begin(timezone.now())
    known = queues(begin, using=using)
    asked = request.GET.get("queue", "")
    queue = asked if asked in {each.name for each in known} else ""
    letters = {each.name for each in known if each.is_dead_letter}
    groups = blocked_groups(queue or None, using=using)
    blocked = [group for group in groups if group.queue not in letters]
    beat = pulse(queue or None, using=using)
    steps = _steps(period, queue, beat.counted_until, using)
    items = _items(found(using), known, [group for group in groups if group.queue in letters], url)
    return {
        "at": _clock(timezone.now()),
        "pulse": beat.mark,
        "headline": headline(blocked, items, queue),
        "is_fine": not blocked and all(item.level == Level.NOTICE for item in items),
        "rows": rows_of(blocked[:SHOWN], using, url),
        "more": max(0, len(blocked) - SHOWN),
        "items": items,
        "tiles": _tiles(known, blocked, steps, period, begin, queue, beat.running, using, url),
        "steps": steps_as_json(steps, period),
        "charts": [(chart, chart.as_json(url("job_changelist"))) for chart in charts(steps, period, queue)],
        "report": Report.objects.using(using).defer("page").first(),
        "period": period,
        "periods": list(PERIODS.values()),
        "queue": queue,
        "unknown_queue": asked if not queue else "",
        "names": [each.name for each in known],
        "blocked_url": f"{url('blockedkey_changelist')}{_query(queue=queue)}",
        "may_retry": request.user.has_perm("jobqueue.retry_job"),
        "may_skip": request.user.has_perm("jobqueue.skip_job"),
    }


def _period(request: HttpRequest) -> Period:
    return PERIODS.get(request.GET.get("period", ""), PERIODS["1h"])


def _clock(moment: datetime) -> str:
    return date_format(timezone.localtime(moment), "H:i:s")


def _query(**parameters: str) -> str:
    given = {name: value for name, value in parameters.items() if value}
    return f"?{urlencode(given)}" if given else ""


def _steps(period: Period, queue: str, counted_until: datetime | None, using: str) -> list[Step]:
    """The steps of the charts, from the cache for a while, because minutes are counted once a minute."""
    name = hashlib.sha256(repr((using, period.name, queue)).encode()).hexdigest()
    key = f"jobqueue-charts-{name}"
    steps: list[Step] | None = cache.get(key)
    if steps is None:
        steps = steps_of(period, queue or None, counted_until=counted_until, using=using)
        cache.set(key, steps, KEPT_SECONDS[period.name])
    return steps


# ------------------------------------------------------------------------------------------------------- blocked keys


def headline(blocked: list[BlockedGroup], items: list[AttentionItem], queue: str = "") -> str:
    """``5 keys blocked in 2 queues · 107 jobs wait behind them · longest 33 min``, or an all-clear."""
    if blocked:
        keys, behind = sum(group.keys for group in blocked), sum(group.behind for group in blocked)
        places = len({group.queue for group in blocked})
        return " · ".join(
            (
                ngettext("%s key blocked", "%s keys blocked", keys) % many(keys, _most(blocked))
                + " "
                + (_("in %s") % queue if queue else ngettext("in %s queue", "in %s queues", places) % f"{places:,}"),
                ngettext("%s job waits behind them", "%s jobs wait behind them", behind) % many(behind, MOST_BEHIND),
                _("longest %s") % duration(_age(blocked)),
            )
        )
    troubles = sum(item.level != Level.NOTICE for item in items)
    if troubles:
        text = ngettext("%s thing needs attention", "%s things need attention", troubles) % f"{troubles:,}"
        return f"{_('No key is blocked')} · {text}"
    return _("All clear: no key is blocked, no worker is silent, nothing is late.")


def _most(blocked: list[BlockedGroup]) -> int:
    """Up to where the keys are counted exactly: if a queue has more than are read, the sum is a lower bound."""
    by_queue: Counter[str] = Counter()
    for group in blocked:
        by_queue[group.queue] += group.keys
    full = [number for number in by_queue.values() if number > MANY]
    return sum(by_queue.values()) - len(full) if full else sum(by_queue.values())


def _age(blocked: list[BlockedGroup]) -> timedelta:
    return timezone.now() - min(group.since for group in blocked)


# -------------------------------------------------------------------------------------------------------------- tiles


def _tiles(
    known: list[QueueNow],
    blocked: list[BlockedGroup],
    steps: list[Step],
    period: Period,
    begin: datetime,
    queue: str,
    running: int,
    using: str,
    url: UrlOf,
) -> list[Tile]:
    """The figures. Queues that get dead letters, and paused queues, have no job that could run now."""
    jobs = url("job_changelist")
    open_queues = {each.name for each in known if not (each.is_dead_letter or each.is_paused)}
    could_run = {
        name: oldest
        for name, oldest in first_fetchable(using=using).items()
        if name in open_queues and queue in ("", name)
    }
    oldest = max(could_run.values(), key=lambda job: job.seconds, default=None)
    waits, is_capped = count_waiting(queue or None, most=MOST_WAITING, using=using)
    counted = steps[-1].at + steps[-1].minutes * MINUTE - begin if steps else period.span
    since, until = bounds_of(begin, counted)
    failed = sum(each.dead for each in known if queue in ("", each.name))
    ended_since = {"finalized_at__range__gte": since}
    completed = sum(step.completed for step in steps)
    failed_in_all = sum(step.failed for step in steps)
    behind, keys = sum(group.behind for group in blocked), sum(group.keys for group in blocked)
    return [
        Tile(
            "oldest",
            _("oldest job that could run now"),
            duration(oldest.seconds) if oldest else _("none"),
            url("job_change", oldest.id) if oldest else jobs + _query(queue=queue, state="waiting"),
        ),
        Tile(
            "behind",
            _("jobs behind blocked keys"),
            many(behind, MOST_BEHIND),
            url("blockedkey_changelist") + _query(queue=queue),
            _("%(keys)s, since %(age)s")
            % {
                "keys": ngettext("%s key", "%s keys", keys) % many(keys, _most(blocked)),
                "age": duration(_age(blocked), units=1),
            }
            if blocked
            else _("no key is blocked"),
            spark(None if step.blocked is None else float(step.blocked) for step in steps),
            bool(blocked),
        ),
        Tile(
            "failed",
            _("failed in %s") % period.label,
            many(failed),
            jobs + _query(queue=queue, state="dead", **ended_since),
            _("%s more were retried or skipped") % f"{failed_in_all - failed:,}" if failed_in_all > failed else "",
            spark(float(step.failed) for step in steps),
            bool(failed),
        ),
        Tile("running", _("running"), many(running, MOST_RUNNING), jobs + _query(queue=queue, state="running")),
        Tile(
            "waiting",
            _("waiting"),
            f"{waits:,}{'+' if is_capped else ''}",
            jobs + _query(queue=queue, state="waiting"),
            line=spark(None if step.waiting is None else float(step.waiting) for step in steps),
        ),
        Tile(
            "completed",
            _("completed in %s") % period.label,
            f"{completed:,}",
            jobs + _query(queue=queue, state="completed", **ended_since, finalized_at__range__lte=until),
            _("%s of all that ended failed") % f"{failed_in_all / (completed + failed_in_all):.1%}"
            if failed_in_all
            else "",
            spark(float(step.completed) for step in steps),
        ),
    ]


# ---------------------------------------------------------------------------------------------------- needs attention


def _items(
    found: list[Finding], known: list[QueueNow], dead_letters: list[BlockedGroup], url: UrlOf
) -> list[AttentionItem]:
    """What needs attention besides blocked keys, the worst first."""
    items = [_item_of(finding, url) for finding in found]
    items += _failing(known, url)
    items += _backlogs(known, url)
    items += _blocked_letters(dead_letters, url)
    order = [level.value for level in (Level.ERROR, Level.WARNING, Level.NOTICE)]
    return sorted(items, key=lambda item: order.index(item.level))


def _item_of(finding: Finding, url: UrlOf) -> AttentionItem:
    """The doctor's finding, with a link to the page on which it can be looked at."""
    screen = url_of(finding, url) or url("maintenance_changelist")
    return AttentionItem(finding.level.value, finding.title, finding.detail, screen)


def _failing(known: Iterable[QueueNow], url: UrlOf) -> list[AttentionItem]:
    """Queues in which at least as many jobs failed for good as completed."""
    since = local(timezone.now() - timedelta(hours=1))
    return [
        AttentionItem(
            Level.ERROR.value,
            _("Most jobs of %s fail") % queue.name,
            _("%(failed)s failed for good in the last hour, %(completed)s completed.")
            % {"failed": f"{queue.failed:,}", "completed": f"{queue.completed:,}"},
            url("job_changelist") + _query(queue=queue.name, state="dead", finalized_at__range__gte=since),
        )
        for queue in known
        if queue.failed and queue.failed >= queue.completed
    ]


def _backlogs(known: Iterable[QueueNow], url: UrlOf) -> list[AttentionItem]:
    """Queues in which, at the end of the last minute, more jobs waited than their backlog warning allows."""
    return [
        AttentionItem(
            Level.WARNING.value,
            _("Many jobs wait in %s") % queue.name,
            _("%(waiting)s jobs wait; the backlog warning of the queue is %(limit)s.")
            % {"waiting": f"{queue.waiting:,}", "limit": f"{queue.warning_queue_size:,}"},
            url("job_changelist") + _query(queue=queue.name, state="waiting"),
        )
        for queue in known
        if queue.is_long
    ]


def _blocked_letters(groups: list[BlockedGroup], url: UrlOf) -> list[AttentionItem]:
    """Dead-letter queues with blocked keys, which are in no other figure."""
    keys: Counter[str] = Counter()
    for group in groups:
        keys[group.queue] += group.keys
    return [
        AttentionItem(
            Level.NOTICE.value,
            ngettext(
                "%(keys)s blocked key in the dead-letter queue %(queue)s",
                "%(keys)s blocked keys in the dead-letter queue %(queue)s",
                number,
            )
            % {"keys": many(number), "queue": queue},
            _("A dead letter of each key failed for good."),
            url("blockedkey_changelist") + _query(queue=queue),
        )
        for queue, number in keys.items()
    ]
