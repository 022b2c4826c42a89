"""Operations: which operator did what, to which jobs, queue or schedule, when and why, and how far it got.

An open page runs a large operation; when it is closed, the housekeeping process of a worker continues it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from .. import services
from ..displayed import shown_edits
from ..exceptions import InvalidOption
from ..models import BlockedKey, Job, Operation
from ..selection import Selection
from ..services.inspect.jobs import job_database
from ..services.operations import counts_of
from .acting import ACTIONS
from .base import JobQueueAdmin, may_see_data, page_url
from .changelist import CappedPaginator
from .json_tree import json_tree
from .selections import in_words, to_query, until_in_words
from .timeline import parsed
from .wording import many, time_tag

IDS_SHOWN = 200
WITHOUT_JOBS = ("delete", "purge", "stop_worker")  # there are no jobs to show afterwards
VERBS_SHOWN = {
    "run_schedule": _("run now"),
    "create_queue": _("create queue"),
    "update_queue": _("edit queue"),
    "delete_queue": _("delete queue"),
    "create_schedule": _("create schedule"),
    "update_schedule": _("edit schedule"),
    "delete_schedule": _("delete schedule"),
    "stop_worker": _("stop worker"),
}


class ObjectFilter(admin.SimpleListFilter):
    """The operations on one job, queue or schedule; shown only if a link of its page has led here."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = request.GET.get(str(self.parameter_name), "")[:255]
        return [(value, value)] if value else []

    def has_output(self) -> bool:
        return bool(self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        return queryset.none() if "\0" in value else self.about(queryset, value)

    def about(self, operations: Any, value: str) -> QuerySet[Any]:
        return operations.filter(**{str(self.parameter_name): value})  # type: ignore[no-any-return]


class AboutQueue(ObjectFilter):
    title, parameter_name = _("queue"), "queue"


class AboutSchedule(ObjectFilter):
    title, parameter_name = _("schedule"), "schedule"


class AboutJob(ObjectFilter):
    title, parameter_name = _("job"), "job"

    def about(self, operations: Any, value: str) -> QuerySet[Any]:
        try:
            return operations.of_job(UUID(value))  # type: ignore[no-any-return]
        except ValueError:
            return operations.none()  # type: ignore[no-any-return]


@admin.register(Operation)
class OperationAdmin(JobQueueAdmin):
    list_display = ("verb_shown", "object_shown", "operator", "reason_shown", "state_shown", "moved_shown",
                    "refused_shown", "began")  # fmt: skip
    list_display_links = ("verb_shown",)
    list_filter = (AboutJob, AboutQueue, AboutSchedule)
    look_ups = ("job", "queue", "schedule")
    sortable_by = ()
    paginator = CappedPaginator
    ordering = ("-pk",)  # ids are in the order of time, and have an index

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission to view jobs is enough to view operations on jobs."""
        return request.user.has_perm("jobqueue.view_job") or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).for_lists()  # type: ignore[attr-defined,no-any-return]

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:id>/advance/", wrap(require_POST(self.advance_view)), name="jobqueue_operation_advance"),
            path("<uuid:id>/stop/", wrap(require_POST(self.stop_view)), name="jobqueue_operation_stop"),
            path("<uuid:id>/resume/", wrap(require_POST(self.resume_view)), name="jobqueue_operation_resume"),
            *super().get_urls(),
        ]

    # -------------------------------------------------------------------------------------------------------- pages

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        try:
            operation = self._operation(request, object_id)
        except Http404:
            return self.gone(request, object_id)
        sees = may_see_data(request)
        details = operation.details
        refused = details.get("refused", {})
        edits = details.get("data", {}) if sees else {}
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": verb_text(operation).capitalize(),
            "operation": operation,
            "counts_jobs": operation.verb in (*ACTIONS, "purge"),
            "percent": percent(operation),
            "is_open": operation.state != Operation.State.DONE,
            "is_running": operation.state == Operation.State.RUNNING,
            "may_act": self._may_act(request, operation),
            "jobs": self._jobs(operation, refused),
            "chosen": chosen(operation),
            "jobs_url": self._jobs_url(operation),
            "redriven": redriven(operation),
            "came_later": came_later(operation),
            "later_url": list_url(operation, self.admin_site.name),
            "switches": details.get("switches", []),
            "changes": changes_shown(operation, sees=sees),
            "edits": [(edit.id, json_tree(edit.before), json_tree(edit.after)) for edit in shown_edits(edits)],
            "hides_edits": not sees and bool(details.get("data") or "data" in details.get("changed", {})),
        }
        return TemplateResponse(request, "admin/jobqueue/operation/page.html", context)

    def advance_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        """Run the operation for about a second. The page's script gets JSON; a form without script gets the page."""
        operation = self._to_act_on(request, id)
        operation = services.advance_operation(operation)
        if "application/json" not in request.headers.get("Accept", ""):
            return HttpResponseRedirect(self.url("operation_change", operation.pk))
        return JsonResponse(
            {
                "state": operation.state,
                "moved": operation.moved,
                "refused": operation.refused,
                "percent": percent(operation),
            }
        )

    def stop_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        operation = self._to_act_on(request, id)
        reason = self.reason_given(request, needed=False) or ""
        services.stop_operation(operation, operator=request.user.get_username(), reason=reason)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))

    def resume_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        operation = self._to_act_on(request, id)
        reason = self.reason_given(request, needed=False) or ""
        services.resume_operation(operation, operator=request.user.get_username(), reason=reason)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))

    def _operation(self, request: HttpRequest, id: str | UUID) -> Operation:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            operation_id = id if isinstance(id, UUID) else UUID(id)
        except ValueError as error:
            raise Http404 from error
        operation = Operation.objects.using(job_database()).for_lists().defer(None).filter(pk=operation_id).first()
        if operation is None:
            raise Http404
        return operation

    def _to_act_on(self, request: HttpRequest, id: UUID) -> Operation:
        operation = self._operation(request, id)
        if not self._may_act(request, operation):
            raise PermissionDenied
        return operation

    def _may_act(self, request: HttpRequest, operation: Operation) -> bool:
        """An operator with the permission for the verb may also continue operations of other operators."""
        act = ACTIONS.get(operation.verb)
        return act is not None and request.user.has_perm(act.permission)

    def _jobs(self, operation: Operation, refused: dict[str, str]) -> list[dict[str, Any]]:
        """The first jobs that were selected one by one, and those that were refused, as they are now.

        Dead letters that moved are gone: the job that does their work is shown instead.
        """
        became = operation.details.get("became", {})
        named = operation.selection.get("ids", [])
        done = int((operation.cursor or {}).get("place", len(named)))
        waiting = set(named[done:])
        ids = list(dict.fromkeys([*named, *refused, *became]))[:IDS_SHOWN]
        now = {id: UUID(became.get(id, id)) for id in ids}
        jobs = Job.objects.using(job_database()).defer("data", "output", "error", "attempts").in_bulk(now.values())
        return [{"id": id, "job": jobs.get(now[id]), "refused": refused.get(id), "waits": id in waiting} for id in ids]

    def _jobs_url(self, operation: Operation) -> str | None:
        """The list of exactly the jobs that the operation changed; ``None`` if it changed none or deleted them."""
        if not operation.moved or operation.verb in WITHOUT_JOBS:
            return None
        return f"{self.url('job_changelist')}?{urlencode({'operation': str(operation.pk)})}"

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("operation"))
    def verb_shown(self, operation: Operation) -> str:
        return verb_text(operation)

    @admin.display(description=_("of"))
    def object_shown(self, operation: Operation) -> str:
        return chosen(operation)[:200]

    @admin.display(description=_("changed"))
    def moved_shown(self, operation: Operation) -> str | SafeString:
        number = f"{operation.moved:,}"
        url = self._jobs_url(operation)
        return number if url is None else format_html('<a href="{}">{}</a>', url, number)

    @admin.display(description=_("refused"))
    def refused_shown(self, operation: Operation) -> str:
        return f"{operation.refused:,}"

    @admin.display(description=_("reason"))
    def reason_shown(self, operation: Operation) -> str:
        return operation.reason[:100]

    @admin.display(description=_("state"))
    def state_shown(self, operation: Operation) -> SafeString:
        return format_html('<span class="jq-state jq-state-{}">{}</span>', operation.state, operation.state)

    @admin.display(description=_("started"))
    def began(self, operation: Operation) -> str:
        return time_tag(operation.started_at)


def verb_text(operation: Operation) -> str:
    return str(VERBS_SHOWN.get(operation.verb, operation.verb))


def chosen(operation: Any) -> str:
    """What the operation is about: the jobs with their bound, or the queue, the schedule or the worker."""
    facts = operation.facts
    if operation.schedule:
        return str(_t("schedule %s") % operation.schedule)
    if "worker" in facts:
        return str(_t("worker %s") % facts["worker"])
    if operation.verb not in ACTIONS:
        return str(_t("queue %s") % operation.queue)
    until = until_in_words(operation.verb, parsed(facts.get("shown_at")) or operation.started_at)
    if operation.named is not None:
        number = max(operation.named, operation.moved + operation.refused)  # a record has the ids of the first only
        return ngettext("%s job, selected one by one", "%s jobs, selected one by one", number) % f"{number:,}"
    try:
        return f"{in_words(Selection.from_json(operation.filters))}, {until}"
    except InvalidOption:
        return _t("jobs of a selection that cannot be read")


def changes_shown(operation: Operation, *, sees: bool) -> list[tuple[str, SafeString, SafeString]]:
    """Which fields of a queue or schedule changed, from what to what."""
    changed = operation.details.get("changed", {})
    return [
        (name, json_tree(change.get("before")), json_tree(change.get("after")))
        for name, change in changed.items()
        if sees or name != "data"
    ]


def selection_of(operation: Operation) -> Selection | None:
    """The selection of an operation with filters; ``None`` if it has ids, or its selection cannot be read."""
    try:
        selection = Selection.from_json(operation.selection)
    except InvalidOption:
        return None
    return None if selection.is_named else selection


def list_url(operation: Operation, site: str) -> str | None:
    """The URL of the list with the filters of the operation; ``None`` if there is no such list."""
    selection = selection_of(operation)
    query = None if selection is None else to_query(selection)
    if selection is None or query is None:
        return None
    model: type[Job] = BlockedKey if selection.blocks_key else Job
    return f"{page_url(site, f'{model._meta.model_name}_changelist')}?{query}"


def came_later(operation: Operation) -> str:
    """How many jobs were not changed because they were not confirmed, up to a limit; empty if none."""
    number = int(operation.details.get("came_later", 0))
    if not number:
        return ""
    if "came_later_among" not in operation.details:
        return many(number)
    return _t("%(number)s of the latest %(among)s") % {
        "number": many(number),
        "among": f"{operation.details['came_later_among']:,}",
    }


def redriven(operation: Operation) -> str:
    """What became of the dead letters of a redrive; empty for other operations."""
    if operation.verb != "redrive":
        return ""
    numbers = {name: f"{number:,}" for name, number in counts_of(operation).items()}
    return _t("originals retried: %(retried)s; jobs sent again: %(sent)s; nothing left to do: %(removed)s") % numbers


def percent(operation: Operation) -> int:
    """The progress in percent, by the sequence numbers that were processed."""
    if operation.state == Operation.State.DONE or operation.cursor is None:
        return 100
    place = int(operation.cursor["place"])
    if "ids" in operation.selection:
        return min(100, 100 * place // max(1, len(operation.selection["ids"])))
    first, last = (int(operation.selection.get(name, 0)) for name in ("after_seq", "until_seq"))
    return min(100, 100 * (place - first) // max(1, last - first))
