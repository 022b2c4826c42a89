"""Operations: which operator did what to which jobs, why, and its progress; an open page runs a large operation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from .. import services
from ..displayed import shown_edits
from ..exceptions import InvalidOption
from ..models import BlockedKey, Job, Operation
from ..selection import Selection
from ..services.inspect.jobs import job_database
from ..services.redrive import counts_of
from .acting import ACTIONS
from .base import JobQueueAdmin, may_see_data, page_url
from .changelist import CappedPaginator
from .json_tree import json_tree
from .selections import to_query
from .wording import many, time_tag

IDS_SHOWN = 200


@admin.register(Operation)
class OperationAdmin(JobQueueAdmin):
    list_display = ("verb_shown", "operator", "reason_shown", "state_shown", "moved", "refused", "began")
    list_display_links = ("verb_shown",)
    sortable_by = ()
    paginator = CappedPaginator
    ordering = ("-pk",)  # ids are in the order of time, and have an index

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The permission to view jobs is enough to view operations on jobs."""
        return request.user.has_perm("jobqueue.view_job") or super().has_view_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("selection", "details", "cursor")

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
        operation = self._operation(request, object_id)
        sees = may_see_data(request)
        refused = operation.details.get("refused", {})
        edits = operation.details.get("data", {}) if sees else {}
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": str(operation.verb).capitalize(),
            "operation": operation,
            "percent": percent(operation),
            "is_open": operation.state != Operation.State.DONE,
            "is_running": operation.state == Operation.State.RUNNING,
            "may_act": self._may_act(request, operation),
            "jobs": self._jobs(operation, refused),
            "redriven": redriven(operation),
            "filters": filters_shown(operation),
            "came_later": came_later(operation),
            "later_url": list_url(operation, self.admin_site.name),
            "edits": [(edit.id, json_tree(edit.before), json_tree(edit.after)) for edit in shown_edits(edits)],
            "hides_edits": bool(operation.details.get("data")) and not sees,
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
        services.stop_operation(operation)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))

    def resume_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        operation = self._to_act_on(request, id)
        services.resume_operation(operation)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))

    def _operation(self, request: HttpRequest, id: str | UUID) -> Operation:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            operation_id = id if isinstance(id, UUID) else UUID(id)
        except ValueError as error:
            raise Http404 from error
        operation = Operation.objects.using(job_database()).filter(pk=operation_id).first()
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
        """The jobs of the operation as they are now, and why some were refused; with filters, only refused jobs."""
        became = operation.details.get("became", {})  # where the work of dead letters went
        ids = list(dict.fromkeys([*operation.selection.get("ids", []), *refused, *became]))[:IDS_SHOWN]
        now = {id: UUID(became.get(id, id)) for id in ids}
        jobs = Job.objects.using(job_database()).defer("data", "output", "attempts").in_bulk(now.values())
        return [{"id": id, "job": jobs.get(now[id]), "refused": refused.get(id)} for id in ids]

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("operation"))
    def verb_shown(self, operation: Operation) -> str:
        return f"{operation.verb} {operation.queue}" if operation.verb in ("pause", "resume") else operation.verb

    @admin.display(description=_("reason"))
    def reason_shown(self, operation: Operation) -> str:
        return operation.reason[:100]

    @admin.display(description=_("state"))
    def state_shown(self, operation: Operation) -> SafeString:
        return format_html('<span class="jq-state jq-state-{}">{}</span>', operation.state, operation.state)

    @admin.display(description=_("started"))
    def began(self, operation: Operation) -> str:
        return time_tag(operation.started_at)


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


def filters_shown(operation: Operation) -> str | None:
    """The filters in one line; ``None`` if the operation has none."""
    selection = selection_of(operation)
    if selection is None:
        return None
    query = to_query(selection)
    bare = replace(selection, after_seq=None, until_seq=None, blocks_key=None)
    return json.dumps(bare.to_json(), ensure_ascii=False) if query is None else query


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
