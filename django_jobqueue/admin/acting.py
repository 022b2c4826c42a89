"""Actions of operators: the verbs, the page that asks for confirmation, and the operation that runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from .. import services
from ..exceptions import InvalidOption
from ..models import Job, Operation
from ..selection import Selection
from ..services.inspect.jobs import job_database
from ..services.inspect.lists import count
from ..services.operations import VERBS, shown_jobs
from .base import JobQueueAdmin
from .selections import from_query
from .wording import last_line, many

MOST_NAMED = 1_000  # jobs that are selected by their checkbox
FINISH_SECONDS = 10.0  # spent on these in the request; the page of the operation does the rest


@dataclass(frozen=True)
class JobAction:
    """A verb as an action of the admin."""

    verb: str
    label: Any
    title: Any
    consequence: Any
    permission: str
    is_grave: bool = False

    @property
    def takes(self) -> frozenset[Any]:
        return VERBS[self.verb].takes

    @property
    def needs_reason(self) -> bool:
        return VERBS[self.verb].needs_reason


ACTIONS = {
    act.verb: act
    for act in (
        JobAction(
            "retry",
            _("Retry"),
            _("Retry jobs"),
            _("Each failed job gets one more attempt at once, before all other jobs of its key."),
            "jobqueue.retry_job",
        ),
        JobAction(
            "skip",
            _("Skip"),
            _("Skip jobs"),
            _("Each job ends without another attempt. Your reason is kept with it; the next job of its key can run."),
            "jobqueue.skip_job",
            is_grave=True,
        ),
        JobAction(
            "cancel",
            _("Cancel"),
            _("Cancel jobs"),
            _("Waiting jobs end at once; running jobs are asked to stop."),
            "jobqueue.cancel_job",
            is_grave=True,
        ),
        JobAction(
            "delete",
            _("Delete"),
            _("Delete jobs"),
            _("Finished jobs are deleted with their data and history. Keys that they block are released."),
            "jobqueue.delete_job",
            is_grave=True,
        ),
    )
}


class ReasonForm(forms.Form):
    """The reason, which is kept with the operation and with each skipped job."""

    reason = forms.CharField(
        label=_("Reason"), max_length=1_000, required=False, widget=forms.TextInput(attrs={"class": "vTextField"})
    )

    is_only_field = True

    def __init__(self, *args: Any, needed: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["reason"]
        field.widget.attrs["autofocus"] = self.is_only_field  # so that Enter confirms
        field.required = needed
        field.help_text = _("Kept with each job.") if needed else _("Optional; kept with the operation.")


class ActingAdmin(JobQueueAdmin):
    """A list of jobs with actions for the selected jobs, or for all jobs that match the filters."""

    acts: Iterable[str] = ()
    search_field = "search"  # the field of the selection for the text in the search box
    always: Mapping[str, Any] = MappingProxyType({})  # fields of every selection of this list

    def selection(self, request: HttpRequest) -> Selection:
        """The selection of the filters in the URL. Raises ``InvalidOption``."""
        return from_query(request.GET, self.look_ups, search=self.search_field, **self.always)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return all rows, because the search is part of the selection."""
        return queryset, False

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Refuse actions without permission and ids that are not valid. Django would ignore them."""
        requested = {name for name in request.POST.getlist("action") if name}
        if requested & (set(map(str, self.actions or ())) - set(self.get_actions(request))):
            raise PermissionDenied
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if len(chosen) > MOST_NAMED:
            raise SuspiciousOperation("More jobs were selected than a page shows.")
        for id in chosen:
            _as_uuid(id)
        return super().response_action(request, queryset, *args, **kwargs)

    def act_on_many(self, request: HttpRequest, queryset: QuerySet[Any], act: JobAction) -> HttpResponse:
        """Show what will happen; once that is confirmed, begin the operation."""
        if not request.user.has_perm(act.permission):
            raise PermissionDenied
        across = request.POST.get("select_across") == "1"
        ids = [_as_uuid(id) for id in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        confirmed = "confirmed" in request.POST
        form = ReasonForm(request.POST if confirmed else None, needed=act.needs_reason)
        if confirmed and form.is_valid():
            chosen: dict[str, Any] = {"selection": self.selection(request)} if across else {"ids": ids}
            operation = self.begun(request, act, form.cleaned_data["reason"], **chosen)
            if operation is not None:
                if not across:
                    services.advance_operation(operation, seconds=FINISH_SECONDS)
                return HttpResponseRedirect(self.url("operation_change", operation.pk))
        listed = "" if confirmed else request.POST.get("snapshot", "")  # before the list was read
        snapshot = listed or services.current_snapshot()  # otherwise before the jobs on the page are read
        context = {
            **self.admin_site.each_context(request),
            "title": act.title,
            "act": act,
            "form": form,
            "opts": self.opts,
            "media": self.media,
            "across": across,
            "ids": ids,
            "action": request.POST.getlist("action")[0],
            "checkbox": ACTION_CHECKBOX_NAME,
            "back": request.get_full_path(),
            "snapshot": snapshot,
            **(self.preview_all(request, act, snapshot) if across else self.preview(queryset, act)),
        }
        return TemplateResponse(request, "admin/jobqueue/confirm.html", context)

    def begun(self, request: HttpRequest, act: JobAction, reason: str, **chosen: Any) -> Operation | None:
        """Begin the operation on the jobs that were confirmed; ``None`` and a message if the snapshot is not valid."""
        try:
            return services.begin_operation(
                act.verb,
                operator=request.user.get_username(),
                reason=reason,
                snapshot=request.POST.get("snapshot"),
                **chosen,
            )
        except InvalidOption as error:
            if error.option != "snapshot":
                raise
            self.message_user(request, _("Nothing was changed: %s Please confirm again.") % error, messages.ERROR)
            return None

    def preview_all(self, request: HttpRequest, act: JobAction, snapshot: str) -> dict[str, Any]:
        shown = replace(self.selection(request), snapshot=snapshot)
        counted = count(shown_jobs(act.verb, shown, job_database()))
        number = many(counted.number)
        return {"number": number, "is_some": counted.among is not None, "among": counted.among}

    def preview(self, queryset: QuerySet[Any], act: JobAction) -> dict[str, Any]:
        """Each selected job, and whether the verb would change it now."""
        jobs = queryset.defer("data", "output", "attempts").order_by("seq")
        lines = [{"job": job, "error": last_line(job.error), "taken": job.state in act.takes} for job in jobs]
        return {"lines": lines, "number": sum(1 for line in lines if line["taken"])}

    def act_on_one(self, request: HttpRequest, job: Job, act: JobAction, reason: str) -> bool:
        """Apply the action to one job and show a message; returns whether the job changed."""
        operation = self.begun(request, act, reason, ids=[job.pk])
        if operation is None:
            return False
        operation = services.advance_operation(operation)
        if operation.moved:
            self.message_user(request, _("Done: %s.") % act.label, messages.SUCCESS)
            return True
        why = operation.details.get("refused", {}).get(str(job.pk), _("it no longer exists"))
        self.message_user(request, _("Nothing was changed: %s.") % why, messages.ERROR)
        return False


def _as_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SuspiciousOperation("This is not the id of a job.") from error
