"""Failures: failed jobs grouped by the place where they failed; a group can be retried or skipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import FailureGroup, Job
from ..services.inspect.failures import MOST_GROUPS, TREND_HOURS, Group, failure_groups
from ..services.inspect.jobs import job_database
from ..services.operations import shown_now
from .base import JobQueueAdmin
from .confirmations import token_of
from .wording import error_line, number

WIDTH, HEIGHT = 96, 24  # of the bars
STEADY = 0.2  # of the last hours' failures: smaller changes are no trend


@dataclass(frozen=True, slots=True)
class Trend:
    """The failures of the last hours as bars, and in words."""

    bars: SafeString
    arrow: str
    text: str


def trend_of(group: Group) -> Trend:
    """Compare the last hour with the average of the hours before, as far as their failures were counted."""
    hours = group.hours[: group.counted_hours]
    latest, before = hours[0], hours[1:]
    usual = sum(before) / len(before) if before else latest
    if abs(latest - usual) <= STEADY * max(latest, usual):
        arrow, direction = "→", _("steady")
    else:
        arrow, direction = ("↑", _("rising")) if latest > usual else ("↓", _("falling"))
    if not sum(hours):
        arrow, direction = "", _("none")
    facts = {"direction": direction, "latest": number(latest), "all": number(sum(hours)), "hours": len(hours)}
    text = _("%(direction)s: %(latest)s in the last hour, %(all)s in %(hours)s h") % facts
    return Trend(_bars(hours[::-1], text), arrow, text)


def _bars(hours: list[int], text: str) -> SafeString:
    most, width = max([*hours, 1]), WIDTH / TREND_HOURS
    bars = format_html_join(
        "",
        '<rect x="{}" y="{}" width="{}" height="{}"></rect>',
        (
            (f"{WIDTH - (len(hours) - place) * width:.1f}", f"{HEIGHT - tall:.1f}", f"{width - 1:.1f}", f"{tall:.1f}")
            for place, failed in enumerate(hours)
            if (tall := max(2.0, HEIGHT * failed / most) if failed else 0)
        ),
    )
    return format_html(
        '<svg class="jq-bars" viewBox="0 0 {} {}" role="img" aria-label="{}"><title>{}</title>{}</svg>',
        WIDTH,
        HEIGHT,
        text,
        text,
        bars,
    )


@admin.register(FailureGroup)
class FailureAdmin(JobQueueAdmin):
    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Failures are jobs, so the permission to view jobs is required."""
        return request.user.has_perm("jobqueue.view_job")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = job_database()
        shown = shown_now(using=using)
        groups = failure_groups(using=using)
        examples = (
            Job.objects.using(using).defer("data", "output", "error", "attempts").in_bulk([g.example for g in groups])
        )
        lines = [
            {
                "group": group,
                "job": examples[group.example],
                "error": error_line(examples[group.example], 300),
                "query": urlencode({"fingerprint": group.fingerprint, "state": "dead"}),
                "number": f"{number(group.number)}{'+' if group.is_capped else ''}",
                "trend": trend_of(group),
            }
            for group in groups
            if group.example in examples
        ]
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "lines": lines,
            "is_full": len(groups) == MOST_GROUPS,
            "checkbox": ACTION_CHECKBOX_NAME,
            "shown": token_of(shown),
            "may_retry": self.has_retry_permission(request),
            "may_skip": self.has_skip_permission(request),
        }
        return TemplateResponse(request, "admin/jobqueue/failures.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return self.job_of(request, object_id)
