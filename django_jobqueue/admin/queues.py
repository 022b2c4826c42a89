"""Queues: the policy in a sentence, counts of jobs, pause and resume; queues are created and changed by verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from .. import services
from ..counting import MANY
from ..exceptions import JobQueueError
from ..models import Queue
from ..options import QUEUE_OPTIONS, clean_queue_options, queue_defaults
from ..policies import QueuePolicy
from ..services.inspect.blocked import Filter, count_blocked
from ..services.inspect.health import blocked_keys
from ..services.inspect.jobs import job_database
from ..services.queues import FIXED
from .base import ReasonActionForm, reason_field
from .figures import Figures, figures_of
from .overview import figures_view, overview_view, pulse_view
from .redrive import RedrivePage
from .wording import duration, many, number, time_tag

DURATIONS = {
    "retry_delay": _("retry after"),
    "retry_delay_max": _("longest retry delay"),
    "expire_in_seconds": _("an attempt expires after"),
    "heartbeat_seconds": _("heartbeat every"),
    "retention_seconds": _("keep while waiting"),
    "delete_after_seconds": _("keep when finished"),
    "delete_failed_after_seconds": _("keep when failed"),
}
SENTENCES = {
    QueuePolicy.STANDARD: _("Any number of jobs may wait and run; of each key, only one job may be unfinished."),
    QueuePolicy.SHORT: _("One job per key may wait; any number may run."),
    QueuePolicy.SINGLETON: _("Any number of jobs may wait; one job per key may run."),
    QueuePolicy.STATELY: _("Per key, one job may wait, one may wait for a retry and one may run."),
    QueuePolicy.EXCLUSIVE: _("One job per key may wait or run; others are refused."),
    QueuePolicy.KEY_STRICT_FIFO: _("Jobs of a key run one at a time, in the order they were sent."),
}


def durations_of(queue: Queue) -> list[tuple[str, str]]:
    """The options of a queue that are stored as seconds, in words."""
    options = [(str(label), getattr(queue, name)) for name, label in DURATIONS.items()]
    return [
        (label, duration(seconds) if seconds else _t("at once")) for label, seconds in options if seconds is not None
    ]


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """Shows the errors of the verbs at the fields that are wrong."""

    class Meta:
        model = Queue
        fields = ("name", *QUEUE_OPTIONS)

    reason = reason_field()
    operator = ""
    saved: Queue | None = None

    def clean(self) -> None:
        """Check the options as the verbs do, before the constraints of the table are checked."""
        super().clean()
        with self.refusals():
            clean_queue_options(self.options())

    def _post_clean(self) -> None:
        """Call the verb at the end of the validation, so that its errors are errors of the form."""
        super()._post_clean()  # type: ignore[misc]
        if self.errors:
            return
        verb = services.create_queue if self.instance._state.adding else services.update_queue
        with self.refusals():
            reason = self.cleaned_data["reason"]
            self.saved = verb(self.instance.name, operator=self.operator, reason=reason, **self.options())

    def options(self) -> dict[str, Any]:
        options = {name: self.cleaned_data[name] for name in QUEUE_OPTIONS if name in self.cleaned_data}
        if options.get("dead_letter") is not None:
            options["dead_letter"] = options["dead_letter"].name
        return options

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Show errors of the verbs at the field that is wrong."""
        try:
            yield
        except JobQueueError as error:
            option = getattr(error, "option", None)
            self.add_error(option if option in self.fields else None, str(error))


MOST_QUEUES = 1_000
SORTED: dict[str, Callable[[Any], Any]] = {
    "name": lambda queue: queue.name,
    "policy_shown": lambda queue: queue.policy,
    "state_shown": lambda queue: queue.is_paused,
    "waiting": lambda queue: queue.figures.waiting,
    "running": lambda queue: queue.figures.running,
    "done": lambda queue: queue.figures.completed,
    "failed": lambda queue: queue.figures.failed,
    "blocked": lambda queue: queue.blocked,
}


class QueueChangeList(ChangeList):
    """All queues with their figures, sorted by any column: a project has hundreds, not millions."""

    def get_results(self, request: HttpRequest) -> None:
        using = job_database()
        queues = list(self.queryset[:MOST_QUEUES])
        figures = figures_of([queue.name for queue in queues], using=using)
        blocked = {counted.queue: counted.number for counted in blocked_keys(most=MANY + 1, using=using)}
        for queue in queues:
            queue.figures, queue.blocked = figures[queue.name], blocked.get(queue.name, 0)
        column, reverse = self._sorted_by()
        queues.sort(key=SORTED[column], reverse=reverse)
        self.result_count = self.full_result_count = len(queues)
        self.show_full_result_count, self.show_admin_actions, self.can_show_all = False, bool(queues), False
        self.paginator = Paginator(queues, self.list_per_page)
        self.page_num = min(max(self.page_num, 1), self.paginator.num_pages)
        self.multi_page = self.paginator.num_pages > 1
        self.result_list = self.paginator.page(self.page_num).object_list

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return ["name"]

    def _sorted_by(self) -> tuple[str, bool]:
        """The column, and whether the order is descending; the name if the URL names no column."""
        place = self.params.get(ORDER_VAR, "").split(".")[0]
        digits = place.removeprefix("-")[:3]
        known = digits.isascii() and digits.isdigit() and int(digits) < len(self.list_display)
        column = str(self.list_display[int(digits)]) if known else ""
        return (column, place.startswith("-")) if column in SORTED else ("name", False)


@admin.register(Queue)
class QueueAdmin(RedrivePage):
    form = QueueForm
    list_display = (
        "name",
        "policy_shown",
        "state_shown",
        "waiting",
        "running",
        "done",
        "failed",
        "blocked",
        "dead_letter_shown",
    )
    sortable_by = tuple(SORTED)
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("A part of the name.")
    list_per_page = 100
    actions = ("pause_queues", "resume_queues")
    action_form = ReasonActionForm
    look_ups = ("policy__exact",)
    change_form_template = "admin/jobqueue/queue/form.html"
    fieldsets = (
        (None, {"fields": ("name", "policy", "description", "partition")}),
        (_("Retries"), {"fields": ("retry_limit", "retry_delay", "retry_backoff", "retry_delay_max")}),
        (_("Time limits"), {"fields": ("expire_in_seconds", "heartbeat_seconds")}),
        (_("Retention"), {"fields": ("retention_seconds", "delete_after_seconds", "delete_failed_after_seconds")}),
        (_("Failures and limits"), {"fields": ("dead_letter", "warning_queue_size", "delayed_head", "on_exhausted")}),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return QueueChangeList

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return any(map(request.user.has_perm, ("jobqueue.view_queue", "jobqueue.change_queue", "jobqueue.view_job")))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.add_queue")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Queues that are declared in settings cannot be changed here: the next ``migrate`` would undo it."""
        return request.user.has_perm("jobqueue.change_queue") and not getattr(obj, "from_code", False)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.pause_queue")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("name", *FIXED)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """With a reason, if there is something to change."""
        may_save = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        record = ((_("Record"), {"fields": ("reason",)}),)
        return (*super().get_fieldsets(request, obj), *(record if may_save else ()))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.operator = request.user.get_username()
        return form

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return queue_defaults() | super().get_changeform_initial_data(request)

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("overview/", wrap(overview_view), name="jobqueue_overview"),
            path("pulse/", wrap(pulse_view), name="jobqueue_pulse"),
            path("figures/", wrap(partial(figures_view, site=self.admin_site)), name="jobqueue_figures"),
            path("<path:name>/pause/", wrap(require_POST(self.pause_view)), name="jobqueue_queue_pause"),
            path("<path:name>/resume/", wrap(require_POST(self.resume_view)), name="jobqueue_queue_resume"),
            path("<path:name>/redrive/", wrap(self.redrive_view), name="jobqueue_queue_redrive"),
            *super().get_urls(),
        ]

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Nothing to save: the form has called the verb. Take over the row that the verb returned."""
        if form.saved is not None:
            obj.__dict__.update(form.saved.__dict__)

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        queue = None if object_id is None else self.get_object(request, unquote(object_id))
        if object_id is not None and queue is None:
            return self.gone(request, unquote(object_id))
        extra: dict[str, Any] = {"queue": queue, "may_pause": self.has_pause_permission(request)}
        if queue is not None:
            extra |= {
                "sentence": SENTENCES[QueuePolicy(queue.policy)],
                "figures": figures_of([queue.name], using=job_database())[queue.name],
                "blocked": self._blocked_text(queue),
                "durations": durations_of(queue),
                "title": queue.name,
                "subtitle": None,
                "keeps_dead_letters": Queue.objects.using(job_database()).filter(dead_letter=queue).exists(),
            }
        return super().changeform_view(request, object_id, form_url, {**extra, **(extra_context or {})})

    def _blocked_text(self, queue: Queue) -> str:
        """How many keys are blocked; empty if the policy never blocks a key."""
        using = job_database()
        return many(count_blocked(Filter(queue=queue.name), using=using)) if queue.is_ordered else ""

    # -------------------------------------------------------------------------------------------- pause and resume

    def pause_view(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _t("%s is paused: running jobs continue, and new jobs are accepted.")
        return self._switch(request, name, services.pause, text, needs_reason=True)

    def resume_view(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _t("%s is resumed: its jobs are fetched again.")
        return self._switch(request, name, services.resume, text, needs_reason=False)

    def _switch(self, request: HttpRequest, name: str, verb: Any, text: str, *, needs_reason: bool) -> HttpResponse:
        if not self.has_view_permission(request) or not self.has_pause_permission(request):
            raise PermissionDenied
        name = unquote(name)
        reason = self.reason_given(request, needed=needs_reason)
        if reason is not None:
            try:
                verb(name, operator=request.user.get_username(), reason=reason)
            except JobQueueError:
                return self.gone(request, name)
            self.message_user(request, text % name, messages.SUCCESS)
        return HttpResponseRedirect(self.url("queue_change", quote(name)))

    @admin.action(description=_("Pause selected queues, with a reason"), permissions=["pause"])
    def pause_queues(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        reason = self.reason_given(request, needed=True)
        if reason is None:
            return
        for name in queryset.values_list("name", flat=True):
            services.pause(name, operator=request.user.get_username(), reason=reason)
        self.message_user(request, _("Paused: running jobs continue, and new jobs are accepted."))

    @admin.action(description=_("Resume selected queues"), permissions=["pause"])
    def resume_queues(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        reason = self.reason_given(request, needed=False) or ""
        for name in queryset.values_list("name", flat=True):
            services.resume(name, operator=request.user.get_username(), reason=reason)
        self.message_user(request, _("Resumed: their jobs are fetched again."))

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("policy"), ordering="policy")
    def policy_shown(self, queue: Queue) -> SafeString:
        return format_html('<span title="{}">{}</span>', SENTENCES[QueuePolicy(queue.policy)], queue.policy)

    @admin.display(description=_("state"), ordering="paused_at")
    def state_shown(self, queue: Queue) -> SafeString:
        if queue.is_paused:
            return format_html('<span class="jq-state jq-state-retry">{}</span> {}', _("paused"),
                               time_tag(queue.paused_at, ago=True))  # fmt: skip
        return format_html('<span class="jq-state jq-state-done">{}</span>', _("open"))

    @admin.display(description=_("waiting"), ordering="waiting")
    def waiting(self, queue: Queue) -> SafeString:
        figures: Figures = queue.figures  # type: ignore[attr-defined]
        oldest = duration(figures.oldest_seconds, units=1) if figures.oldest_seconds else ""
        return format_html(
            '{} <span class="jq-quiet">{}</span>', self._linked(figures.waiting_text, queue, "waiting"),
            _t("oldest %s") % oldest if oldest else "",
        )  # fmt: skip

    @admin.display(description=_("running"), ordering="running")
    def running(self, queue: Queue) -> SafeString:
        figures: Figures = queue.figures  # type: ignore[attr-defined]
        return self._linked(figures.running_text, queue, "running")

    @admin.display(description=_("completed in 1 h"), ordering="done")
    def done(self, queue: Queue) -> str:
        return number(queue.figures.completed)  # type: ignore[attr-defined]

    @admin.display(description=_("failed in 1 h"), ordering="failed")
    def failed(self, queue: Queue) -> SafeString:
        return self._linked(number(queue.figures.failed), queue, "dead")  # type: ignore[attr-defined]

    @admin.display(description=_("blocked keys"), ordering="blocked")
    def blocked(self, queue: Queue) -> str | SafeString:
        if not queue.is_ordered:
            return ""
        query = urlencode({"queue": queue.name})
        return format_html('<a href="{}?{}">{}</a>', self.url("blockedkey_changelist"), query, many(queue.blocked))  # type: ignore[attr-defined]

    @admin.display(description=_("dead letters"))
    def dead_letter_shown(self, queue: Queue) -> str | SafeString:
        if queue.dead_letter_id is None:
            return ""
        query = urlencode({"queue": queue.dead_letter_id})
        return format_html('<a href="{}?{}">{}</a>', self.url("job_changelist"), query, queue.dead_letter_id)

    def _linked(self, text: str, queue: Queue, state: str) -> SafeString:
        query = urlencode({"queue": queue.name, "state": state})
        return format_html('<a href="{}?{}">{}</a>', self.url("job_changelist"), query, text)
