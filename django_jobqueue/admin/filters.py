"""The filters of the job list: choices, texts and ranges, all of them plain links and forms without inline code."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import Case, DurationField, ExpressionWrapper, F, QuerySet, When
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from rangefilter.filters import DateTimeRangeFilter, NumericRangeFilter

from ..engine.databases import database
from ..models import Queue
from ..states import DEAD, ELIGIBLE, FINAL, RUNNING, JobState

QUEUES_SHOWN = 200
LONGEST = 255

GROUPS = {
    "waiting": (_("waiting"), ELIGIBLE),
    "running": (_("running"), RUNNING),
    "dead": (_("failed for good"), DEAD),
    "finished": (_("finished"), FINAL),
}


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label) for name, (label, _states) in GROUPS.items()] + list(JobState.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value in GROUPS:
            return queryset.filter(state__in=sorted(GROUPS[value][1]))
        return queryset.filter(state=value) if value in JobState.values else queryset


class QueueFilter(admin.SimpleListFilter):
    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = Queue.objects.using(database(None)).values_list("name", flat=True)[:QUEUES_SHOWN]
        return [(name, name) for name in names]

    def has_output(self) -> bool:
        return True  # also when there is one queue: so that a link to it can be told from "All"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(queue=value) if value else queryset


class FormFilter:
    """A filter with a form of its own, which keeps the others: the hidden fields are in ``choices``."""

    def expected_parameters(self) -> list[str]:
        raise NotImplementedError

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        mine = set(self.expected_parameters())
        others = [(name, value) for name, values in changelist.filter_params.items() for value in values]
        yield {
            "others": [(name, value) for name, value in others if name not in mine],
            "is_used": any(name in mine and value for name, value in others),
            "clear": changelist.get_query_string(remove=list(mine)),
        }


class TextFilter(FormFilter, admin.SimpleListFilter):  # type: ignore[misc]
    """Jobs whose column is exactly the text that was typed."""

    template = "admin/jobqueue/text_filter.html"
    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str]:  # type: ignore[override]
        return [str(self.parameter_name)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return self.filtered(queryset, value) if value and "\0" not in value else queryset

    def filtered(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(**{self.column: value})


class HandlerFilter(TextFilter):
    title, parameter_name, column = _("handler"), "handler", "name"


class KeyFilter(TextFilter):
    title, parameter_name, column = _("key"), "key", "singleton_key"


class WorkerFilter(TextFilter):
    title, parameter_name, column = _("worker"), "worker", "assignee"


class FingerprintFilter(TextFilter):
    title, parameter_name, column = _("failure"), "fingerprint", "fingerprint"


class TagFilter(TextFilter):
    title, parameter_name = _("tags"), "tag"
    column = "tags"

    def filtered(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Several, separated by commas: jobs that carry all of them."""
        tags = [tag.strip() for tag in value.split(",") if tag.strip()]
        return queryset.tagged(tags)  # type: ignore[attr-defined,no-any-return]


class _Range(FormFilter):
    """A range of ``django-admin-rangefilter``, in a template of ours, because theirs has inline scripts and styles."""

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
        def field(label: Any) -> forms.Field:
            picker = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
            return forms.DateTimeField(label=label, required=False, widget=picker)

        return self._fields(field)

    def _get_form_class(self) -> Any:
        return type("TimeRangeForm", (forms.BaseForm,), {"base_fields": self._get_form_fields()})

    def _make_query_filter(self, request: HttpRequest, validated_data: dict[str, Any]) -> dict[str, Any]:
        return _bounds(self.field_path, *map(validated_data.get, self.expected_parameters()))


class NumberRange(_Range, NumericRangeFilter):  # type: ignore[misc]
    def _get_form_fields(self) -> dict[str, forms.Field]:
        def field(label: Any) -> forms.Field:
            number = forms.NumberInput(attrs={"step": "any", "min": "0"})
            return forms.FloatField(label=label, required=False, widget=number, min_value=0, max_value=1e9)

        return self._fields(field)


RAN = ExpressionWrapper(
    Case(When(state=JobState.COMPLETED, then=F("finalized_at")), default=F("attempt_finished_at")) - F("assigned_at"),
    output_field=DurationField(),
)


class DurationRange(NumberRange):
    """How long the latest attempt took, in seconds; registered for a column that it starts from."""

    def __init__(
        self, field: Any, request: HttpRequest, params: Any, model: Any, model_admin: Any, field_path: str
    ) -> None:
        super().__init__(field, request, params, model, model_admin, "duration")
        self.title = _("duration (s)")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.form.is_valid():
            return queryset
        bounds = [self.form.cleaned_data.get(name) for name in self.expected_parameters()]
        seconds = [None if bound is None else timedelta(seconds=bound) for bound in bounds]
        wanted = _bounds("ran", *seconds)
        return queryset.alias(ran=RAN).filter(**wanted) if wanted else queryset


def _bounds(column: str, low: Any, high: Any) -> dict[str, Any]:
    bounds = {f"{column}__gte": low, f"{column}__lte": high}
    return {name: value for name, value in bounds.items() if value is not None}


LIST_FILTER = (
    StateFilter,
    QueueFilter,
    HandlerFilter,
    KeyFilter,
    TagFilter,
    WorkerFilter,
    FingerprintFilter,
    ("created_at", TimeRange),
    ("started_at", TimeRange),
    ("finalized_at", TimeRange),
    ("attempt", NumberRange),
    ("assigned_at", DurationRange),
)
RANGES = ("created_at", "started_at", "finalized_at", "attempt", "duration")
LOOK_UPS = frozenset(
    {"state", "queue", "handler", "key", "tag", "worker", "fingerprint"}
    | {f"{name}__range__{end}" for name in RANGES for end in ("gte", "lte")}
)
