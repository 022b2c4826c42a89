"""Redriving the dead letters of a queue: the page that shows them and asks which to send back, and where to."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from .. import services
from ..doctor.findings import counted
from ..exceptions import InvalidOption, JobQueueError, QueueNotFound
from ..models import Job, Queue
from ..services.inspect import health
from ..services.inspect.jobs import job_database
from ..services.queues import find_queue
from ..services.redrive import check_keeps_dead_letters, dead_letters, oldest_letters
from .acting import FINISH_SECONDS, ReasonForm
from .base import JobQueueAdmin
from .wording import one_line

SHOWN = 10
COUNTED = 1_000  # the count stops here


class RedriveForm(ReasonForm):
    """Which dead letters are sent back, and where to."""

    source_queue = forms.CharField(label=_("Which"), required=False, widget=forms.Select)
    to = forms.CharField(
        label=_("Where to"),
        required=False,
        widget=forms.Select,
        help_text=_("In another queue each letter becomes a new job; its original stays as it is."),
    )
    limit = forms.IntegerField(
        label=_("At most"), required=False, min_value=1, help_text=_("Only so many, the oldest first. Empty: all.")
    )
    field_order = ("source_queue", "to", "limit", "reason")

    def __init__(self, *args: Any, queue: str, sources: list[str], queues: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        which = [(name, _t("dead letters of %s") % name) for name in sources]
        where = [(name, name) for name in queues if name != queue]
        selects: Any = self.fields
        selects["source_queue"].widget.choices = [("", _t("all dead letters")), *which]
        selects["to"].widget.choices = [("", _t("the queue that each came from")), *where]

    def options(self) -> dict[str, Any]:
        """The options of the verb."""
        return {name: self.cleaned_data[name] or None for name in ("source_queue", "to", "limit")}


class RedrivePage(JobQueueAdmin):
    """The page of a dead-letter queue on which an operator redrives it."""

    def redrive_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the dead letters on GET, begin the operation on POST."""
        if not self.has_view_permission(request) or (
            request.method == "POST" and not self.has_retry_permission(request)
        ):
            raise PermissionDenied
        queue, using = unquote(name), job_database()
        snapshot = services.current_snapshot()  # before the letters on the page are read
        try:
            check_keeps_dead_letters(find_queue(queue, using).name, using)
        except QueueNotFound as error:
            raise Http404 from error
        except InvalidOption as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self.url("queue_change", quote(queue)))
        form = self._form(request, queue, using)
        if request.method == "POST" and form.is_valid() and (response := self._begun(request, queue, form, using)):
            return response
        letters = oldest_letters(queue, SHOWN, using)
        found = health.dead_letters(most=COUNTED, using=using)
        # A queue that no other queue names as its dead letter any more is not counted.
        number, most = next(((each.number, COUNTED) for each in found if each.queue == queue), (len(letters), SHOWN))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": _t("Dead letters in %s") % queue,
            "queue": queue,
            "form": form,
            "snapshot": snapshot,
            "number": number,
            "letters": counted(number, _t("dead letter"), _t("dead letters"), most=most),
            "lines": _lines(letters, using),
            "may_redrive": self.has_retry_permission(request),
            "back": self.url("queue_change", quote(queue)),
        }
        return TemplateResponse(request, "admin/jobqueue/queue/redrive.html", context)

    def _form(self, request: HttpRequest, queue: str, using: str) -> RedriveForm:
        stored = dict(Queue.objects.using(using).order_by("name").values_list("name", "dead_letter_id"))
        sources = [name for name, dead_letter in stored.items() if dead_letter == queue]
        posted = request.POST if request.method == "POST" else None
        return RedriveForm(posted, queue=queue, sources=sources, queues=list(stored))

    def _begun(self, request: HttpRequest, queue: str, form: RedriveForm, using: str) -> HttpResponse | None:
        """The page of the operation that begins; ``None`` with an error of the form if it is refused."""
        options = form.options()
        try:
            selection = dead_letters(queue, **options, snapshot=request.POST.get("snapshot"), using=using)
            operation = services.begin_operation(
                "redrive",
                selection=selection,
                to=options["to"],
                operator=request.user.get_username(),
                reason=form.cleaned_data["reason"],
            )
        except JobQueueError as error:
            form.add_error(None, str(error))
            return None
        services.advance_operation(operation, seconds=FINISH_SECONDS)
        return HttpResponseRedirect(self.url("operation_change", operation.pk))


def _lines(letters: list[Job], using: str) -> list[dict[str, Any]]:
    """Dead letters, each with its original, if that is still there."""
    sources = [letter.source_id for letter in letters if letter.source_id]
    originals = Job.objects.using(using).defer("data", "output", "attempts").in_bulk(sources)
    lines = []
    for letter in letters:
        original = originals.get(letter.source_id) if letter.source_id else None
        error = one_line(original or letter)
        lines.append({"letter": letter, "original": original, "error": error})
    return lines
