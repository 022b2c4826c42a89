"""Workers: their states and jobs; a worker can be asked to stop."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from .. import services
from ..conf import get_settings
from ..models import Job, Worker
from ..services.inspect.jobs import job_database
from .base import JobQueueAdmin

SHOWN = 200
JOBS_SHOWN = 500  # running jobs
REMEMBERED = timedelta(days=1)


@admin.register(Worker)
class WorkerAdmin(JobQueueAdmin):
    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("jobqueue.view_worker") or request.user.has_perm("jobqueue.view_job")

    def get_urls(self) -> list[URLPattern]:
        stop = self.admin_site.admin_view(require_POST(self.stop_view))
        return [path("stop/", stop, name="jobqueue_worker_stop"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "lines": lines(),
            "may_stop": request.user.has_perm("jobqueue.stop_worker"),
        }
        return TemplateResponse(request, "admin/jobqueue/workers.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return self.elsewhere(request, "worker_changelist")

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request) or not request.user.has_perm("jobqueue.stop_worker"):
            raise PermissionDenied
        reason = self.reason_given(request, needed=True)
        if reason is None:
            return HttpResponseRedirect(self.url("worker_changelist"))
        name = request.POST.get("name", "")[:255]
        operator = request.user.get_username()
        known = name and "\0" not in name
        asked = services.stop_worker(name, operator=operator, reason=reason) if known else 0
        if asked:
            self.message_user(request, _("Asked %s to stop: it finishes its running jobs first.") % name)
        else:
            self.message_user(request, _("This worker no longer exists."), messages.WARNING)
        return HttpResponseRedirect(self.url("worker_changelist"))


def seen() -> QuerySet[Worker]:
    """Workers that have not stopped, or stopped within the last day."""
    recent = Q(stopped_at=None) | Q(stopped_at__gt=timezone.now() - REMEMBERED)
    order = F("stopped_at").desc(nulls_first=True)
    return Worker.objects.using(job_database()).filter(recent).order_by(order, "name", "started_at")


def lines() -> list[dict[str, Any]]:
    """Each worker, its state, its statistics and the jobs that it holds."""
    running = Job.objects.using(job_database()).running().defer("data", "output", "attempts")
    held: dict[Any, list[Job]] = defaultdict(list)
    for job in running.order_by("assignee")[:JOBS_SHOWN]:
        held[job.incarnation].append(job)
    listed = []
    for worker in seen()[:SHOWN]:
        stats = worker.stats if isinstance(worker.stats, dict) else {}
        listed.append({"worker": worker, "state": state_of(worker), "jobs": held[worker.pk], "stats": stats})
    return listed


def state_of(worker: Worker) -> str:
    """The state of a worker: stopped, silent, stopping or alive."""
    if worker.stopped_at is not None:
        return "stopped"
    if timezone.now() - worker.heartbeat_at > timedelta(seconds=get_settings().WORKER_LOST_SECONDS):
        return "silent"
    return "stopping" if worker.stopping_at is not None else "alive"
