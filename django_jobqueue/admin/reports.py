"""Reports: the pages that ``jobs analyze`` created."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Report
from ..services.inspect.jobs import job_database
from .base import JobQueueAdmin
from .changelist import CappedPaginator
from .wording import time_tag

# The page has its own style sheet, and no other content of it may be loaded or run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


@admin.register(Report)
class ReportAdmin(JobQueueAdmin):
    list_display = ("made", "jobs", "of")
    list_display_links = ("made",)
    sortable_by = ()
    paginator = CappedPaginator
    ordering = ("-pk",)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission to view jobs is enough to view reports."""
        return request.user.has_perm("jobqueue.view_job") or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("page")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page itself, as it was created."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        is_number = object_id.isascii() and object_id.isdigit() and len(object_id) <= 18
        report = Report.objects.using(job_database()).filter(pk=object_id).first() if is_number else None
        if report is None:
            return self.gone(request, object_id)
        return HttpResponse(report.page, headers={"Content-Security-Policy": POLICY})

    @admin.display(description=_("created"))
    def made(self, report: Report) -> str:
        return time_tag(report.created_at)

    @admin.display(description=_("queues"))
    def of(self, report: Report) -> str:
        return report.queues or gettext("all queues")
