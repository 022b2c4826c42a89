"""The page of a job: its history, why it is not running, the jobs around it in its lane, and its actions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import label_for_field
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import handlers, services
from ..displayed import data_to_edit, edited_data, shown_attempts, shown_data, shown_output, shown_summary
from ..error_summary import summary_of_text
from ..exceptions import InvalidTransition, JobNotFound, JobQueueError
from ..identifiers import as_number, is_uuid
from ..models import Job
from ..redaction import HiddenValueMoved, redacted_text
from ..selection import Selection
from ..services.inspect.jobs import JobPulse, job_database, job_pulse
from ..services.inspect.lanes import neighbours
from ..states import FINAL, RETRIABLE, RUNNING
from .acting import ACTIONS, ActingAdmin, JobAction, ReasonForm
from .base import may_edit_data, may_see_data
from .confirmations import Confirmation, NotConfirmable
from .json_tree import json_tree
from .timeline import drawn, parsed, spans_of
from .wording import duration, error_line, many, ran_for

TIMES = (
    "created_at",
    "start_after",
    "started_at",
    "assigned_at",
    "attempt_finished_at",
    "last_retry_at",
    "heartbeat_at",
    "expire_at",
    "lease_until",
    "cancel_requested_at",
    "finalized_at",
    "delete_at",
)
OPTIONS = (
    "priority",
    "retry_limit",
    "retry_count",
    "retry_delay",
    "retry_delay_max",
    "retry_backoff",
    "expire_in_seconds",
    "heartbeat_seconds",
)
SECONDS = frozenset({"retry_delay", "retry_delay_max", "expire_in_seconds", "heartbeat_seconds"})


class DataForm(ReasonForm):
    """New data for a job, as JSON text."""

    json = forms.CharField(
        label=gettext_lazy("Data"),
        widget=forms.Textarea(attrs={"rows": 16, "class": "vLargeTextField jq-code", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "JSON. Hidden values are shown as asterisks with a code. They are kept unless you change them."
        ),
        strip=False,
    )
    field_order = ("json", "reason")
    is_only_field = False

    def clean_json(self) -> Any:
        try:
            return json.loads(self.cleaned_data["json"])
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not valid JSON: %s") % str(error)[:200]) from error


class JobPage(ActingAdmin):
    """The pages of one job."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        job = self.job_or_none(request, object_id)
        if job is None:
            return self.gone(request, object_id)
        if as_number(object_id) is not None:
            return HttpResponseRedirect(self.url("job_change", job.pk))
        using = job_database()
        around = neighbours(job, using=using)
        sees = may_see_data(request)
        context = {
            **self._context(request, job),
            "title": f"#{job.seq}",
            "why": self._why(job),
            "timeline": drawn(spans := spans_of(job)),
            "spans": spans,
            "before": around.before,
            "after": around.after,
            "waiting": many(around.waiting) if around.waiting else "",
            "mark": pulse_of(job).mark,
            "progress_text": redacted_text(job.progress_text),
            "is_final": job.state in FINAL,
            "loaded_at": timezone.now(),
            "sees_data": sees,
            "error": redacted_text(job.error),
            "summary": shown_summary(job),
            "data": json_tree(shown_data(job)) if sees else "",
            "output": json_tree(shown_output(job)) if sees else "",
            "attempts": [_attempt(attempt) for attempt in reversed(shown_attempts(job))],
            "took": duration(ran_for(job)),
            "times": _labelled(job, TIMES),
            "options": _options(job),
            "acts": [act for act in ACTIONS.values() if not act.refusal(job) and request.user.has_perm(act.permission)],
            "may_edit": job.state in RETRIABLE and may_edit_data(request),
        }
        return TemplateResponse(request, "admin/jobqueue/job/page.html", context)

    def pulse_view(self, request: HttpRequest, id: UUID) -> HttpResponse:
        """What changes while the page is open: the script of the page asks for it every few seconds."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        pulse = job_pulse(id, using=job_database())
        if pulse is None:
            raise Http404
        ran = timezone.now() - pulse.assigned_at if pulse.state in RUNNING and pulse.assigned_at else None
        return JsonResponse(
            {
                "mark": pulse.mark,
                "progress": pulse.progress,
                "percent": "" if pulse.progress is None else f"{pulse.progress:.0%}",
                "text": redacted_text(pulse.progress_text),
                "ran": duration(ran),
            }
        )

    def act_view(self, request: HttpRequest, id: str, verb: str) -> HttpResponse:
        """Ask for confirmation on GET, apply the action on POST."""
        act = ACTIONS.get(verb)
        if act is None:
            raise Http404
        if not self.has_view_permission(request) or not request.user.has_perm(act.permission):
            raise PermissionDenied
        if not is_uuid(id):  # it may be a number
            job = self.job_or_none(request, id)
            if job is None:
                return self.gone(request, id)
            id = str(job.pk)
        if request.method == "POST":
            return self._acted(request, UUID(id), act)
        # Before the job is read.
        asked = Confirmation.of(verb, Selection(ids=(UUID(id),)), using=job_database())
        job = self.job_or_none(request, id)
        if job is None:
            return self.gone(request, id)
        line = {"job": job, "error": error_line(job), "refusal": act.refusal(job)}
        context = {
            **self._context(request, job),
            "title": act.label,
            "act": act,
            "form": ReasonForm(needed=act.needs_reason),
            "lines": [line],
            "number": int(not line["refusal"]),
            "token": asked.token(),
            "back": self.url("job_change", job.pk),
        }
        return TemplateResponse(request, "admin/jobqueue/confirm.html", context)

    def _acted(self, request: HttpRequest, id: UUID, act: JobAction) -> HttpResponse:
        try:
            asked = Confirmation.read(request.POST.get("token", ""))
        except NotConfirmable as error:
            self.message_user(request, _("Nothing was changed: %s") % error, messages.ERROR)
            return HttpResponseRedirect(request.path)
        if (asked.verb, asked.selection.ids) != (act.verb, (id,)):
            raise SuspiciousOperation("This was made for another page.")
        reason = self.reason_given(request, needed=act.needs_reason)
        if reason is None:
            return HttpResponseRedirect(request.path)
        moved = self.act_on_one(request, asked, act, reason)
        gone = moved and act.verb in ("delete", "redrive")
        return HttpResponseRedirect(self.url("job_changelist") if gone else self.url("job_change", id))

    def edit_view(self, request: HttpRequest, id: str) -> HttpResponse:
        """Retry a job that failed for good with other data; the change is recorded."""
        if not self.has_view_permission(request) or not may_edit_data(request):
            raise PermissionDenied
        job = self.job_or_none(request, id)
        if job is None:
            return self.gone(request, id)
        if request.method == "POST":
            form = DataForm(request.POST)
            if form.is_valid() and self._retry_with(request, job, form):
                return HttpResponseRedirect(self.url("job_change", job.pk))
        else:
            shown = json.dumps(data_to_edit(job), indent=2, ensure_ascii=False)
            form = DataForm(initial={"json": shown})
        context = {
            **self._context(request, job),
            "title": _("Retry with other data"),
            "form": form,
            "back": self.url("job_change", job.pk),
            "is_dead": job.state in RETRIABLE,
        }
        return TemplateResponse(request, "admin/jobqueue/job/edit.html", context)

    def _retry_with(self, request: HttpRequest, job: Job, form: DataForm) -> bool:
        try:
            data = edited_data(form.cleaned_data["json"], job)
            services.retry(job, data=data, operator=request.user.get_username(), reason=form.cleaned_data["reason"])
        except (InvalidTransition, JobNotFound) as error:
            self.message_user(request, _("Nothing was changed: %s") % error, messages.ERROR)
            return True
        except (JobQueueError, HiddenValueMoved) as error:
            form.add_error("json", str(error))
            return False
        self.message_user(request, _("Retried with the new data."), messages.SUCCESS)
        return True

    def job_or_none(self, request: HttpRequest, id: str) -> Job | None:
        """The job with an id or a number; ``None`` if there is none. Requires the permission to view jobs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return services.find_job(id)
        except JobQueueError:
            return None

    def gone(self, request: HttpRequest, id: str) -> HttpResponse:
        number = as_number(id)
        return super().gone(request, id if number is None else f"#{number}")

    def _context(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, "job": job}

    def _why(self, job: Job) -> str:
        try:
            return services.why(job, find_handler=handlers.discovered())
        except JobNotFound:
            return _("It was deleted a moment ago.")


def _attempt(attempt: dict[str, Any]) -> dict[str, Any]:
    begin, end = parsed(attempt.get("started")), parsed(attempt.get("ended"))
    took = duration(end - begin) if begin and end else ""
    return {
        **attempt,
        "began": begin,
        "took": took,
        "line": attempt["error_summary"] or summary_of_text(attempt["error"]),
    }


def _labelled(job: Job, columns: Iterable[str]) -> list[tuple[str, Any]]:
    return [(str(label_for_field(name, Job)), getattr(job, name)) for name in columns]


def _options(job: Job) -> list[tuple[str, Any]]:
    """The options of the job; those in seconds as durations."""
    return [
        (label.replace(" (s)", ""), duration(value) if name in SECONDS and value is not None else value)
        for name, (label, value) in zip(OPTIONS, _labelled(job, OPTIONS), strict=True)
    ]


def pulse_of(job: Job) -> JobPulse:
    """The pulse of a job that was read."""
    return JobPulse(job.state, job.attempt, job.hold, job.progress, job.progress_text, job.assigned_at)
