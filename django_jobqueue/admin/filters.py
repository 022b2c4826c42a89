"""The filters of the job list: choices, texts and ranges, as links and forms without inline scripts.

They only display the choices. ``selections.py`` makes the ``Selection`` of jobs from the URL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from rangefilter.filters import DateTimeRangeFilter, NumericRangeFilter

from ..counting import Count
from ..models import Queue
from ..services.inspect.jobs import job_database
from ..states import DEAD, ELIGIBLE, FINAL, RUNNING, JobState
from .wording import at_least

QUEUES_SHOWN = 1_000
QUEUES_AS_LINKS = 12
TEXT = "text"

GROUPS = {
    "waiting": (_("waiting"), ELIGIBLE),
    "running": (_("running"), RUNNING),
    "dead": (_("failed for good"), DEAD),
    "finished": (_("finished"), FINAL),
}


class Shown:
    """A filter that does not change the queryset, because the selection does."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset

    def shown(self, value: str) -> str:
        """A value of the URL as text."""
        return value


class StateFilter(Shown, admin.SimpleListFilter):
    """States and groups of states, each with the number of its jobs as far as they were counted."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, _states) in GROUPS.items()] + list(JobState.choices)

    def choices(self, changelist: Any) -> Iterator[Any]:
        for name, choice in zip(("", *dict(self.lookup_choices)), super().choices(changelist), strict=True):
            counts = [changelist.states.get(state) for state in _states_of(name)]
            if name and all(count is not None for count in counts):
                among = max((count.among for count in counts if count.among is not None), default=None)
                text = at_least(Count(sum(count.number for count in counts), among))
                choice["display"] = f"{choice['display']} ({text})" if text else choice["display"]
            yield choice

    def shown(self, value: str) -> str:
        return str(dict(self.lookup_choices).get(value, value))


def _states_of(name: str) -> Collection[str]:
    """The states of a choice of the filter."""
    return GROUPS[name][1] if name in GROUPS else (name,) if name else ()


class QueueFilter(Shown, admin.SimpleListFilter):
    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = Queue.objects.using(job_database()).values_list("name", flat=True)[:QUEUES_SHOWN]
        return [(name, name) for name in names]

    def has_output(self) -> bool:
        return True  # also with a single queue, so that a link to this queue differs from "All"

    @property
    def template(self) -> str:  # type: ignore[override]
        """Links; or, if there are many queues, a text field that suggests their names."""
        few = len(self.lookup_choices) <= QUEUES_AS_LINKS
        return "admin/filter.html" if few else "admin/jobqueue/queue_filter.html"

    def choices(self, changelist: Any) -> Iterator[Any]:
        if len(self.lookup_choices) <= QUEUES_AS_LINKS:
            return super().choices(changelist)
        return form_choices([str(self.parameter_name)], changelist)


class FormFilter(Shown):
    """A filter with its own form; ``choices`` has the other filters as hidden fields, so that they are kept."""

    def expected_parameters(self) -> list[str]:
        raise NotImplementedError

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        return form_choices(self.expected_parameters(), changelist)


def form_choices(parameters: Iterable[str], changelist: Any) -> Iterator[dict[str, Any]]:
    """What the form of a filter needs: the other parameters, whether it is used, and the URL without it."""
    mine = set(parameters)
    used = [(name, value) for name, values in changelist.filter_params.items() for value in values]
    yield {
        "others": [(name, value) for name, value in used if name not in mine],
        "is_used": any(name in mine and value for name, value in used),
        "clear": changelist.get_query_string(remove=list(mine)),
    }


class TextFilter(FormFilter, admin.SimpleListFilter):  # type: ignore[misc]
    """Jobs whose value is exactly the text."""

    template = "admin/jobqueue/text_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str]:  # type: ignore[override]
        return [str(self.parameter_name)]


class HandlerFilter(TextFilter):
    title, parameter_name = _("handler"), "handler"


class KeyFilter(TextFilter):
    title, parameter_name = _("key"), "key"


class WorkerFilter(TextFilter):
    title, parameter_name = _("worker"), "worker"


class FingerprintFilter(TextFilter):
    title, parameter_name = _("failure"), "fingerprint"


class OperationFilter(TextFilter):
    """The jobs that an operation changed; shown only if a link of an operation has led here."""

    title, parameter_name = _("operation"), "operation"

    def has_output(self) -> bool:
        return self.value() is not None


class SourceQueueFilter(TextFilter):
    """Dead letters of this queue."""

    title, parameter_name = _("source queue"), "source_queue"


class ErrorTextFilter(TextFilter):
    """Jobs whose error or displayed data contains the text; the list searches it up to a limit."""

    title, parameter_name = _("text in error or data"), TEXT


class TagFilter(TextFilter):
    """Jobs that have all of the tags, which are separated by commas."""

    title, parameter_name = _("tags"), "tag"


def time_field(label: Any = None) -> forms.DateTimeField:
    picker = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(label=label, required=False, widget=picker)


def number_field(label: Any = None) -> forms.FloatField:
    number = forms.NumberInput(attrs={"step": "any", "min": "0"})
    return forms.FloatField(label=label, required=False, widget=number, min_value=0, max_value=1e9)


class _Range(FormFilter):
    """A range of ``django-admin-rangefilter`` with our own template, because theirs has inline scripts and styles."""

    template = "admin/jobqueue/range_filter.html"
    lookup_kwarg_gte: str
    lookup_kwarg_lte: str

    def expected_parameters(self) -> list[str]:
        return [self.lookup_kwarg_gte, self.lookup_kwarg_lte]

    def _fields(self, make: Any) -> dict[str, forms.Field]:
        return {
            self.lookup_kwarg_gte: make(_("from")),
            self.lookup_kwarg_lte: make(_("to")),
        }


class TimeRange(_Range, DateTimeRangeFilter):  # type: ignore[misc]
    def _get_form_fields(self) -> dict[str, forms.Field]:
        return self._fields(time_field)

    def _get_form_class(self) -> Any:
        return type("TimeRangeForm", (forms.BaseForm,), {"base_fields": self._get_form_fields()})


class NumberRange(_Range, NumericRangeFilter):  # type: ignore[misc]
    def _get_form_fields(self) -> dict[str, forms.Field]:
        return self._fields(number_field)


class DurationRange(NumberRange):
    """The duration of the latest attempt in seconds. It is registered for ``assigned_at``, where it starts."""

    def __init__(
        self, field: Any, request: HttpRequest, params: Any, model: Any, model_admin: Any, field_path: str
    ) -> None:
        super().__init__(field, request, params, model, model_admin, "duration")
        self.title = _("duration (s)")


LIST_FILTER = (
    StateFilter,
    QueueFilter,
    HandlerFilter,
    KeyFilter,
    TagFilter,
    WorkerFilter,
    FingerprintFilter,
    OperationFilter,
    SourceQueueFilter,
    ErrorTextFilter,
    ("created_at", TimeRange),
    ("started_at", TimeRange),
    ("finalized_at", TimeRange),
    ("attempt", NumberRange),
    ("assigned_at", DurationRange),
)
TIMES, NUMBERS = ("created_at", "started_at", "finalized_at"), ("attempt", "duration")
LOOK_UPS = frozenset(
    {"state", "queue", "handler", "key", "tag", "worker", "fingerprint", "operation", "source_queue", TEXT}
    | {f"{name}__range__{end}" for name in (*TIMES, *NUMBERS) for end in ("gte", "lte")}
)
