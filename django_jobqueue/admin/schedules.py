"""Schedules: their meaning, next and recent slots; turn them on and off, run them now, create and change them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from .. import handlers, services
from ..exceptions import JobQueueError, ScheduleNotFound
from ..identifiers import as_uuid, uuid7
from ..models import Queue, Schedule
from ..options import schedule_defaults
from ..redaction import HiddenValueMoved, editable, redacted, restored
from ..services.inspect.jobs import job_database
from ..services.schedules import record_edit
from .base import JobQueueAdmin, ReasonActionForm, may_see_data, reason_field
from .changelist import CappedPaginator
from .json_tree import json_tree
from .wording import time_tag

RUNS_SHOWN = 15
FORM = ("queue", "cron", "timezone", "enabled", "catch_up", "handler", "priority", "singleton_key", "group_key", "tags",
        "data", "options")  # fmt: skip


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """Hides sensitive values of the data; values that are left hidden are kept. Empty options get their defaults."""

    reason = reason_field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "data" in self.initial:
            self.initial["data"] = editable(self.initial["data"], salt=self.instance.pk)
        for name in schedule_defaults().keys() & self.fields.keys():
            self.fields[name].required = False

    def clean_data(self) -> Any:
        if self.instance._state.adding:
            return self.cleaned_data["data"]
        try:
            return restored(self.cleaned_data["data"], self.instance.data, salt=self.instance.pk)
        except HiddenValueMoved as error:
            raise forms.ValidationError(str(error)) from error

    def clean_handler(self) -> str:
        """Refuse a handler that no module declares; one that the schedule has already may be in other code."""
        name: str = self.cleaned_data["handler"]
        if not name or name == self.initial.get("handler"):
            return name
        find = handlers.discovered()
        if find is not None and find("", name) is None:
            raise forms.ValidationError(handlers.missing_text("", name))
        return name

    def clean(self) -> None:
        super().clean()
        for name, default in schedule_defaults().items():
            if self.cleaned_data.get(name) in (None, ""):
                self.cleaned_data[name] = default


@admin.register(Schedule)
class ScheduleAdmin(JobQueueAdmin):
    list_display = ("name", "words", "queue_shown", "state_shown", "next_shown", "last_shown")
    sortable_by = ("name", "next_shown")
    paginator = CappedPaginator
    search_fields = ("name",)
    actions = ("turn_on", "turn_off")
    action_form = ReasonActionForm
    delete_confirmation_template = "admin/jobqueue/schedule/delete.html"
    form = ScheduleForm
    fields = ("name", *FORM)
    change_form_template = "admin/jobqueue/schedule/form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With the queues of all schedules, which :attr:`Schedule.problem` needs, by one statement."""
        schedules = super().get_queryset(request)
        return schedules.prefetch_related(Prefetch("queue", Queue.objects.using(schedules.db)))  # not of a replica

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        permissions = ("jobqueue.view_schedule", "jobqueue.change_schedule", "jobqueue.view_job")
        return any(map(request.user.has_perm, permissions))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.add_schedule") and may_see_data(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Requires the permission to see data; schedules that are declared in settings cannot be changed."""
        allowed = request.user.has_perm("jobqueue.change_schedule") and may_see_data(request)
        return allowed and not getattr(obj, "from_code", False)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only for a single schedule, from its page; Django's bulk delete, which passes no object, is refused."""
        return isinstance(obj, Schedule) and not obj.from_code and request.user.has_perm("jobqueue.delete_schedule")

    def has_switch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.change_schedule")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.run_schedule")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """The data is left out without permission to see it, and shown as a tree if it is read-only."""
        may_save = obj is None or self.has_change_permission(request, obj)
        data = [] if not may_see_data(request) else ["data" if may_save else "data_shown"]
        shown = [field for name in super().get_fields(request, obj) for field in (data if name == "data" else [name])]
        return [*shown, "reason"] if may_save else shown

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("data_shown",) if obj is None else ("name", "data_shown")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        shown = {name: value for name, value in schedule_defaults().items() if name != "data"}
        return shown | super().get_changeform_initial_data(request)

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("<path:name>/run/", wrap(require_POST(self.run_view)), name="jobqueue_schedule_run"),
            path("<path:name>/switch/", wrap(require_POST(self.switch_view)), name="jobqueue_schedule_switch"),
            *super().get_urls(),
        ]

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        schedule = None if object_id is None else self.get_object(request, unquote(object_id))
        if object_id is not None and schedule is None:
            return self.gone(request, unquote(object_id))
        extra: dict[str, Any] = {"schedule": schedule}
        if schedule is not None:
            extra |= {
                "title": schedule.name,
                "subtitle": None,
                "slots": slots_of(schedule),
                "runs": list(schedule.runs.using(job_database())[:RUNS_SHOWN]),
                "may_run": self.has_run_permission(request),
                "may_switch": self.has_switch_permission(request),
                "confirmation": uuid7(),
            }
        return super().changeform_view(request, object_id, form_url, {**extra, **(extra_context or {})})

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        before = self.get_queryset(request).filter(pk=obj.pk).first() if change else None
        super().save_model(request, obj, form, change)
        operator, reason = request.user.get_username(), form.cleaned_data["reason"]
        record_edit(before, obj, operator=operator, reason=reason, using=job_database())

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """Django's page, which asks for the reason too."""
        may = self.has_delete_permission(request, self.get_object(request, unquote(object_id)))
        if may and request.method == "POST" and self.reason_given(request, needed=True) is None:
            return HttpResponseRedirect(request.path)
        return super().delete_view(request, object_id, extra_context)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        reason = self.reason_given(request, needed=True) or ""
        services.delete_schedule(obj.name, operator=request.user.get_username(), reason=reason)

    def run_view(self, request: HttpRequest, name: str) -> HttpResponse:
        if not self.has_view_permission(request) or not self.has_run_permission(request):
            raise PermissionDenied
        name = unquote(name)
        reason = self.reason_given(request, needed=False) or ""
        try:
            page = request.POST.get("confirmation")
            confirmation = as_uuid(page, option="confirmation") if page else None
            operator = request.user.get_username()
            job = services.run_schedule(name, operator=operator, reason=reason, confirmation=confirmation)
        except ScheduleNotFound:
            return self.gone(request, name)
        except JobQueueError as error:
            self.message_user(request, _t("Nothing was sent: %s") % error, messages.ERROR)
            return self._page_of(name)
        if job is None:
            self.message_user(
                request, _t("Nothing was sent: the policy of its queue allows no other job now."), messages.WARNING
            )
        else:
            link = self.url("job_change", job.pk)
            self.message_user(request, format_html('{} <a href="{}">#{}</a>', _t("Sent job"), link, job.seq))
        return self._page_of(name)

    def switch_view(self, request: HttpRequest, name: str) -> HttpResponse:
        if not self.has_view_permission(request) or not self.has_switch_permission(request):
            raise PermissionDenied
        name = unquote(name)
        enabled = request.POST.get("enabled") == "1"
        if not self.get_queryset(request).filter(pk=name).exists():
            return self.gone(request, name)
        if self._switch(request, [name], enabled=enabled):
            self.message_user(request, _t("The schedule is on.") if enabled else _t("The schedule is off."))
        return self._page_of(name)

    def _switch(self, request: HttpRequest, names: Iterable[str], *, enabled: bool) -> bool:
        """Turn schedules on or off, and return whether that was done: turning off needs a reason."""
        reason = self.reason_given(request, needed=not enabled)
        if reason is None:
            return False
        for name in names:
            with suppress(ScheduleNotFound):  # it was deleted a moment ago
                services.switch_schedule(name, enabled=enabled, operator=request.user.get_username(), reason=reason)
        return True

    def _page_of(self, name: str) -> HttpResponse:
        return HttpResponseRedirect(self.url("schedule_change", quote(name)))

    @admin.action(description=_("Turn selected schedules on"), permissions=["switch"])
    def turn_on(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset.values_list("name", flat=True), enabled=True)

    @admin.action(description=_("Turn selected schedules off, with a reason"), permissions=["switch"])
    def turn_off(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._switch(request, queryset.values_list("name", flat=True), enabled=False)

    @admin.display(description=_("data"))
    def data_shown(self, schedule: Schedule) -> SafeString:
        return json_tree(redacted(schedule.data))

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("when"))
    def words(self, schedule: Schedule) -> SafeString:
        return format_html('{} <span class="jq-quiet">{}</span>', schedule.description, schedule.cron)

    @admin.display(description=_("sends to"))
    def queue_shown(self, schedule: Schedule) -> SafeString:
        return format_html(
            '<a href="{}">{}</a> <span class="jq-quiet">{}</span>',
            self.url("queue_change", quote(schedule.queue_id)),
            schedule.queue_id,
            schedule.handler,
        )

    @admin.display(description=_("state"))
    def state_shown(self, schedule: Schedule) -> SafeString:
        if schedule.problem:
            return format_html('<span class="jq-state jq-state-failed" title="{}">{}</span>', schedule.problem,
                               _("broken"))  # fmt: skip
        kind, text = ("done", _("on")) if schedule.enabled else ("stopped", _("off"))
        return format_html('<span class="jq-state jq-state-{}">{}</span>', kind, text)

    @admin.display(description=_("next"), ordering="next_at")
    def next_shown(self, schedule: Schedule) -> str:
        return time_tag(schedule.next_at)

    @admin.display(description=_("last"))
    def last_shown(self, schedule: Schedule) -> str:
        return time_tag(schedule.last_slot)


def slots_of(schedule: Schedule) -> list[dict[str, Any]]:
    """The next five slots in local time; ``changed`` marks the first slot after a change of the clocks."""
    slots: list[datetime] = schedule.next_slots(5)
    changed = [slot.utcoffset() != following.utcoffset() for slot, following in pairwise([*slots[:1], *slots])]
    return [
        {"text": f"{slot:%a %Y-%m-%d %H:%M}", "offset": f"{slot:%z}", "zone": slot.tzname(), "changed": note}
        for slot, note in zip(slots, changed, strict=True)
    ]
