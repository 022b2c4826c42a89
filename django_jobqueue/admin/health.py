"""Health: the findings of ``manage.py jobs doctor``, each with its fix."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from .. import doctor
from ..models import Maintenance
from ..services.inspect.jobs import job_database
from .base import JobQueueAdmin
from .findings import url_of


@admin.register(Maintenance)
class HealthAdmin(JobQueueAdmin):
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = job_database()
        found = doctor.examine(using=using, thorough=False)  # a page creates no tables
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "findings": [(finding, url_of(finding, self.url)) for finding in found],
            "maintenance": Maintenance.objects.using(using).filter(pk=Maintenance.ONLY).first(),
        }
        return TemplateResponse(request, "admin/jobqueue/health.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return self.elsewhere(request, "maintenance_changelist")
