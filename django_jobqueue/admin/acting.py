"""Actions of operators: the verbs, the page that asks for confirmation, and the operation that runs them.

Choosing an action redirects to its page of confirmation, and confirming it to the page of the operation: no page is the
answer to a form, so the browser's *Back* leads from each to the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from .. import services
from ..exceptions import InvalidOption, JobQueueError
from ..identifiers import as_number
from ..models import Job, Operation
from ..selection import Selection
from ..services.inspect.jobs import job_database
from ..services.inspect.lists import count
from ..services.operations import VERBS, confirmed, shown_jobs
from .base import MAX_REASON, JobQueueAdmin
from .confirmations import Confirmation, NotConfirmable, as_shown
from .selections import from_query, in_words, until_in_words
from .wording import error_line, many, moment

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
        """Whatever ends or deletes jobs needs one; giving them another attempt does not."""
        return self.is_grave

    def refusal(self, job: Job) -> Any:
        """Why the verb would not change the job now; empty if it would."""
        if job.state not in self.takes:
            return _("it is %s") % job.get_state_display()
        return _("it is no dead letter") if self.verb == "redrive" and not job.is_copy else ""


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
            "redrive",
            _("Redrive"),
            _("Redrive dead letters"),
            _(
                "Each dead letter returns to the queue it came from: its original is retried in its place. If that was "
                "skipped or deleted, a new job goes to the end of its key."
            ),
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
        label=_("Reason"), max_length=MAX_REASON, required=False, widget=forms.TextInput(attrs={"class": "vTextField"})
    )

    is_only_field = True

    def __init__(self, *args: Any, needed: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["reason"]
        field.widget.attrs["autofocus"] = self.is_only_field  # so that Enter confirms
        field.required = needed
        field.help_text = _("Kept with the operation.") if needed else _("Optional; kept with the operation.")


class ActingAdmin(JobQueueAdmin):
    """A list of jobs with actions for the selected jobs, or for all jobs that match the filters."""

    acts: Iterable[str] = ()
    search_field = "search"  # the field of the selection for the text in the search box
    always: Mapping[str, Any] = MappingProxyType({})  # fields of every selection of this list

    def selection(self, request: HttpRequest) -> Selection:
        """The selection of the filters in the URL. Raises ``InvalidOption``."""
        return from_query(request.GET, self.look_ups, search=self.search_field, **self.always)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list. A search for ``#154`` leads to the job with that number; one for ``154`` names that job as well."""
        text = request.GET.get(SEARCH_VAR, "").strip()
        number = as_number(text) if request.method == "GET" and self.has_view_permission(request) else None
        if number is None:
            return super().changelist_view(request, extra_context)
        try:
            job = services.find_job(number)
        except JobQueueError as error:
            if text.startswith("#"):
                self.message_user(request, str(error), messages.WARNING)
            return super().changelist_view(request, extra_context)
        link = self.url("job_change", job.pk)
        if text.startswith("#"):
            return HttpResponseRedirect(link)
        facts = (link, job.seq, job.queue_id, job.get_state_display())
        self.message_user(request, format_html('<a href="{}">#{}</a> {}: {}', *facts), messages.INFO)
        return super().changelist_view(request, extra_context)

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

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.confirm_view)
        return [path("confirm/<str:token>/", view, name=f"jobqueue_{self._name}_confirm"), *super().get_urls()]

    @property
    def _name(self) -> str:
        return str(self.opts.model_name)

    def act_on_many(self, request: HttpRequest, queryset: QuerySet[Any], act: JobAction) -> HttpResponse:
        """Redirect to the page that shows what will happen and asks for confirmation."""
        if not request.user.has_perm(act.permission):
            raise PermissionDenied
        across = request.POST.get("select_across") == "1"
        ids = [_as_uuid(id) for id in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        selection = self.selection(request) if across else Selection(ids=tuple(ids))
        try:
            # The page of confirmation shows each job that was ticked; of all others, the operator saw only the list.
            shown = as_shown(request.POST.get("shown", "")) if across else None
            asked = Confirmation.of(
                act.verb, selection, shown=shown, back=request.GET.urlencode(), using=job_database()
            )
            return HttpResponseRedirect(self.url(f"{self._name}_confirm", asked.token()))
        except NotConfirmable as error:
            return self._nothing_done(request, error, request.GET.urlencode())

    def confirm_view(self, request: HttpRequest, token: str) -> HttpResponse:
        """Show what will happen; once that is confirmed, begin the operation."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            asked = Confirmation.read(token)
            act = ACTIONS[asked.verb]
        except (NotConfirmable, KeyError) as error:
            return self._nothing_done(request, error)
        if not request.user.has_perm(act.permission):
            raise PermissionDenied
        operation = confirmed(asked.id, using=job_database())
        if request.method == "POST":
            return self._confirmed(request, asked, act, operation)
        across = not asked.selection.is_named
        chosen = self.get_queryset(request).filter(pk__in=asked.selection.ids or ())
        context = {
            **self.admin_site.each_context(request),
            "title": act.title,
            "act": act,
            "form": ReasonForm(needed=act.needs_reason),
            "opts": self.opts,
            "media": self.media,
            "across": across,
            "chosen": in_words(asked.selection),
            "until": until_in_words(act.verb, asked.shown_at),
            "operation": operation,
            "back": self._list(asked.back),
            **(self.preview_all(act, asked) if across else self.preview(chosen, act)),
        }
        return TemplateResponse(request, "admin/jobqueue/confirm.html", context)

    def _confirmed(
        self, request: HttpRequest, asked: Confirmation, act: JobAction, operation: Operation | None
    ) -> HttpResponse:
        if operation is not None:
            self.message_user(request, already_text(operation), messages.WARNING)
            return HttpResponseRedirect(self.url("operation_change", operation.pk))
        reason = self.reason_given(request, needed=act.needs_reason)
        if reason is None:
            return HttpResponseRedirect(request.path)
        try:
            operation = begun(request, asked, reason)
        except InvalidOption as error:
            return self._nothing_done(request, error, asked.back)
        if asked.selection.is_named:
            services.advance_operation(operation, seconds=FINISH_SECONDS)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))

    def _nothing_done(self, request: HttpRequest, error: Exception, back: str = "") -> HttpResponse:
        """Back to the list: the confirmation cannot be used."""
        self.message_user(request, _("Nothing was changed: %s") % error, messages.ERROR)
        return HttpResponseRedirect(self._list(back))

    def _list(self, query: str) -> str:
        return self.url(f"{self._name}_changelist") + (f"?{query}" if query else "")

    def preview_all(self, act: JobAction, asked: Confirmation) -> dict[str, Any]:
        shown = replace(asked.selection, snapshot=asked.snapshot)
        counted = count(shown_jobs(act.verb, shown, job_database()))
        number = many(counted.number)
        return {"number": number, "is_some": counted.among is not None, "among": counted.among}

    def preview(self, queryset: QuerySet[Any], act: JobAction) -> dict[str, Any]:
        """Each selected job, and whether the verb would change it now."""
        jobs = queryset.defer("data", "output", "error", "attempts").order_by("seq")
        lines = [{"job": job, "error": error_line(job), "refusal": act.refusal(job)} for job in jobs]
        return {"lines": lines, "number": sum(1 for line in lines if not line["refusal"])}

    def act_on_one(self, request: HttpRequest, asked: Confirmation, act: JobAction, reason: str) -> bool:
        """Apply the action to one job and show a message; returns whether the job changed."""
        (job_id,) = asked.selection.ids or ()
        try:
            operation = services.advance_operation(begun(request, asked, reason))
        except InvalidOption as error:
            self.message_user(request, _("Nothing was changed: %s") % error, messages.ERROR)
            return False
        if operation.moved:
            self.message_user(request, _("Done: %s.") % act.label, messages.SUCCESS)
            return True
        why = operation.details.get("refused", {}).get(str(job_id), _("it no longer exists"))
        self.message_user(request, _("Nothing was changed: %s.") % why, messages.ERROR)
        return False


def begun(request: HttpRequest, asked: Confirmation, reason: str) -> Operation:
    """Begin the operation on the jobs that were shown. Raises ``InvalidOption`` if the snapshot is not valid."""
    return services.begin_operation(
        asked.verb,
        selection=asked.selection,
        operator=request.user.get_username(),
        reason=reason,
        snapshot=asked.snapshot,
        shown_at=asked.shown_at,
        confirmation=asked.id,
    )


def already_text(operation: Operation) -> str:
    return _t("This was confirmed before, by %(operator)s at %(time)s. It is done once.") % {
        "operator": operation.operator,
        "time": moment(operation.started_at),
    }


def _as_uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise SuspiciousOperation("This is not the id of a job.") from error
