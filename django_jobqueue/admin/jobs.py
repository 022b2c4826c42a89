"""Jobs: the list with its filters and actions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from ..models import Job
from . import job_page, wording
from .acting import ACTIONS, ActingAdmin
from .changelist import JobChangeList, act_links
from .filters import LIST_FILTER, LOOK_UPS, TEXT


@admin.register(Job)
class JobAdmin(job_page.JobPage, ActingAdmin):
    list_display = ("number", "state_shown", "work", "key", "sent", "ran", "error_shown", "acts_shown")
    list_display_links = ("number",)
    list_filter = LIST_FILTER
    look_ups = LOOK_UPS
    sortable_by = ("number",)
    ordering = ("-seq",)
    search_fields = ("id", "singleton_key")
    search_help_text = _("The number of a job, such as #154, its id or the beginning of it, or the beginning of a key.")
    actions = ("retry_jobs", "redrive_jobs", "skip_jobs", "cancel_jobs", "delete_jobs")
    actions_on_bottom = False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return super().get_queryset(request).defer("data", "output", "error", "attempts")

    def get_urls(self) -> list[URLPattern]:
        return [
            path("<str:id>/act/<str:verb>/", self.admin_site.admin_view(self.act_view), name="jobqueue_job_act"),
            path("<str:id>/edit/", self.admin_site.admin_view(self.edit_view), name="jobqueue_job_edit"),
            path("<uuid:id>/pulse/", self.admin_site.admin_view(self.pulse_view), name="jobqueue_job_pulse"),
            *super().get_urls(),
        ]

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Refuse to select all jobs with a text: no selection has the text, so all jobs would be changed."""
        if request.POST.get("select_across") == "1" and request.GET.get(TEXT):
            text = _("Nothing was changed: a search in errors and data may stop early. Select the jobs one by one.")
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *args, **kwargs)

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("job"), ordering="seq")
    def number(self, job: Job) -> str:
        return f"#{job.seq}"

    @admin.display(description=_("state"))
    def state_shown(self, job: Job) -> SafeString:
        badge = wording.state_badge(job.state)
        if job.attempt < 2:
            return badge
        return format_html('{} <span class="jq-quiet">{}</span>', badge, _t("attempt %d") % job.attempt)

    @admin.display(description=_("queue, handler"))
    def work(self, job: Job) -> SafeString:
        return format_html(
            '<a href="{}">{}</a> <span class="jq-quiet">{}</span>',
            self.url("queue_change", quote(job.queue_id)),
            job.queue_id,
            job.name,
        )

    @admin.display(description=_("key"))
    def key(self, job: Job) -> str:
        return job.singleton_key

    @admin.display(description=_("sent"))
    def sent(self, job: Job) -> str:
        return wording.time_tag(job.created_at)

    @admin.display(description=_("duration"))
    def ran(self, job: Job) -> str:
        return wording.duration(wording.ran_for(job))

    @admin.display(description=_("error"))
    def error_shown(self, job: Job) -> str:
        return wording.error_line(job, 160)

    @admin.display(description=_("action"))
    def acts_shown(self, job: Job) -> SafeString:
        return act_links(job, self.admin_site.name)

    # ------------------------------------------------------------------------------------------------------ actions

    @admin.action(description=_("Retry selected jobs"), permissions=["retry"])
    def retry_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["retry"])

    @admin.action(description=_("Redrive selected dead letters"), permissions=["retry"])
    def redrive_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["redrive"])

    @admin.action(description=_("Skip selected jobs with a reason"), permissions=["skip"])
    def skip_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["skip"])

    @admin.action(description=_("Cancel selected jobs"), permissions=["cancel"])
    def cancel_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["cancel"])

    @admin.action(description=_("Delete selected jobs"), permissions=["erase"])
    def delete_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["delete"])
