"""Failures: failed jobs grouped by the place where they failed; a group can be retried."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode

from ..models import FailureGroup, Job
from ..services.inspect.failures import MOST_GROUPS, failure_groups
from ..services.inspect.jobs import job_database
from .base import JobQueueAdmin
from .wording import error_line


@admin.register(FailureGroup)
class FailureAdmin(JobQueueAdmin):
    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Failures are jobs, so the permission to view jobs is required."""
        return request.user.has_perm("jobqueue.view_job")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = job_database()
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
            "may_retry": self.has_retry_permission(request),
        }
        return TemplateResponse(request, "admin/jobqueue/failures.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return self.job_of(request, object_id)
