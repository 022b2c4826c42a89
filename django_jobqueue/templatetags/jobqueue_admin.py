"""Filters and tags for the templates of the admin."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from ..admin import wording
from ..admin.overview import may_look, overview

register = template.Library()


@register.filter
def state_badge(state: str) -> SafeString:
    return wording.state_badge(state)


@register.filter
def time_tag(value: datetime | None) -> str:
    return wording.time_tag(value)


@register.filter
def duration(value: timedelta | float | None) -> str:
    return wording.duration(value)


@register.filter
def last_line(error: str) -> str:
    return wording.last_line(error)


@register.filter
def number(value: int) -> str:
    return wording.number(value)


@register.filter
def percent(share: float) -> str:
    """A share from 0 to 1 in percent."""
    return f"{share:.0%}"


@register.filter
def ago(value: datetime | None) -> str:
    return wording.time_tag(value, ago=True)


@register.simple_tag
def overview_of(request: HttpRequest) -> dict[str, Any] | None:
    """The context of the first page; ``None`` if the user may not view jobs."""
    return overview(request) if may_look(request) else None


@register.simple_tag
def query(**parameters: Any) -> str:
    """Parameters of a link, encoded; those that are empty are left out."""
    return urlencode({name: value for name, value in parameters.items() if value})
