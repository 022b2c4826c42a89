"""Convert the URL of a list into a selection of jobs, and a selection into a URL or a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import ValidationError
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..selection import Range, Selection
from ..states import JobState
from .filters import GROUPS, NUMBERS, TIMES, number_field, time_field
from .wording import moment

TEXTS = (
    "queue",
    "handler",
    "key",
    "worker",
    "fingerprint",
    "operation",
    "source_queue",
)  # parameters with the name of the field
LABELS: Mapping[str, Any] = MappingProxyType(
    {
        "queue": _("queue"),
        "states": _("state"),
        "key": _("key"),
        "key_prefix": _("key begins with"),
        "tags": _("tags"),
        "handler": _("handler"),
        "worker": _("worker"),
        "fingerprint": _("failure"),
        "search": _("search"),
        "source_queue": _("dead letters of"),
        "operation": _("changed by the operation"),
        "created_at": _("sent"),
        "started_at": _("first started"),
        "finalized_at": _("ended"),
        "attempt": _("attempt"),
        "duration": _("duration in seconds"),
    }
)


def from_query(params: Mapping[str, Any], look_ups: Iterable[str], *, search: str, **always: Any) -> Selection:
    """The selection of a URL, from the parameters that the list has. Raises ``InvalidOption``.

    A value that cannot be parsed does not filter, and the form of its filter shows the error. ``search`` is the field
    for the text in the search box, ``always`` are fields that every selection of this list has.
    """
    values = {name: text for name in look_ups if (text := _text(params.get(name)))}
    searched = _text(params.get(SEARCH_VAR)).strip() or None
    fields: dict[str, Any] = {name: values.get(name) for name in TEXTS}
    fields |= {name: _range(name, values, time_field()) for name in TIMES}
    fields |= {name: _range(name, values, number_field()) for name in NUMBERS}
    fields |= {"states": _states(values.get("state")), "tags": _tags(values.get("tag")), search: searched}
    return Selection(**fields, **always)


def to_query(selection: Selection) -> str | None:
    """The URL parameters of the list that shows a selection; ``None`` if no URL can express it."""
    fields: dict[str, Any] = {name: getattr(selection, name) for name in TEXTS}
    fields |= {"operation": None if selection.operation is None else str(selection.operation)}
    fields |= {"state": _state(selection.states), "tag": None if selection.tags is None else ",".join(selection.tags)}
    fields[SEARCH_VAR] = selection.search if selection.key_prefix is None else selection.key_prefix
    for name in (*TIMES, *NUMBERS):
        bounds: Range[Any] = getattr(selection, name) or Range()
        fields |= {f"{name}__range__gte": _shown(bounds.low), f"{name}__range__lte": _shown(bounds.high)}
    params = {name: value for name, value in fields.items() if value is not None}
    has_comma = any("," in tag for tag in selection.tags or ())
    return None if selection.is_named or has_comma or "" in params.values() else urlencode(params)


def in_words(selection: Selection) -> str:
    """The filters of a selection for the operator who reads them later."""
    if selection.ids is not None:
        number = len(selection.ids)
        return ngettext("%d job, selected one by one", "%d jobs, selected one by one", number) % number
    filters = [
        f"{label}: {_value(getattr(selection, name))}"
        for name, label in LABELS.items()
        if getattr(selection, name) is not None
    ]
    which = _t("all jobs that block a key") if selection.blocks_key else _t("all jobs")
    return which + (f" ({'; '.join(filters)})" if filters else "")


def until_in_words(verb: str, shown_at: datetime) -> str:
    """Which of the selected jobs an operation is about: those that were in their state when they were shown."""
    text = {"cancel": _t("sent until %s"), "delete": _t("ended until %s")}.get(verb, _t("failed until %s"))
    return text % moment(shown_at)


def _value(value: Any) -> str:
    match value:
        case tuple():
            return ", ".join(map(_value, value))
        case JobState():
            return str(value.label)
        case Range():
            return _t("%(low)s to %(high)s") % {"low": _value(value.low), "high": _value(value.high)}
        case datetime():
            return moment(value)
        case None:
            return "…"
        case _:
            return str(value)


def _text(value: object) -> str:
    """The text, or an empty text if it has a NUL, which PostgreSQL cannot store."""
    return value if isinstance(value, str) and "\0" not in value else ""


def _states(value: str | None) -> list[JobState] | None:
    if value in GROUPS:
        return sorted(GROUPS[value][1])
    return [JobState(value)] if value in JobState.values else None


def _state(states: tuple[JobState, ...] | None) -> str | None:
    """The choice of the filter for these states; empty if there is none."""
    if states is None:
        return None
    groups = {frozenset(group): name for name, (_, group) in GROUPS.items()}
    return states[0] if len(states) == 1 else groups.get(frozenset(states), "")


def _tags(value: str | None) -> list[str] | None:
    return [tag.strip() for tag in (value or "").split(",") if tag.strip()] or None


def _range(name: str, values: Mapping[str, str], field: forms.Field) -> Range[Any] | None:
    try:
        low, high = (_bound(values.get(f"{name}__range__{end}"), field) for end in ("gte", "lte"))
    except ValidationError:
        return None
    return None if low is None and high is None else Range(low, high)


def _bound(text: str | None, field: forms.Field) -> Any:
    value = field.clean(text)
    return make_aware(value) if isinstance(value, datetime) and is_naive(value) else value


def _shown(bound: Any) -> str | None:
    return bound.isoformat() if isinstance(bound, datetime) else None if bound is None else str(bound)
