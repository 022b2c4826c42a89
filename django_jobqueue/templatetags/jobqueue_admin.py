"""Filters and tags for the templates of the admin."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..admin import wording
from ..admin.overview import may_look, overview
from ..models import Job
from ..redaction import redacted_text

register = template.Library()


@register.filter
def state_badge(state: str) -> SafeString:
    return wording.state_badge(state)


@register.filter
def time_tag(value: datetime | None) -> str:
    return wording.time_tag(value)


@register.filter
def time_text(value: str) -> str:
    """A time that is stored as text."""
    return wording.time_tag(parse_datetime(value))


@register.filter
def duration(value: timedelta | float | None) -> str:
    return wording.duration(value)


@register.filter
def error_line(job: Job) -> str:
    return wording.error_line(job)


@register.filter
def without_secrets(text: str) -> str:
    return redacted_text(text)


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
def copy_button(text: object, what: str) -> SafeString:
    """A button that copies a text; ``what`` says what that is. Without script it is not shown."""
    return format_html(
        '<span class="jq-copying"><button type="button" class="jq-copy" data-jq-copy="{}" aria-label="{}">{}</button> '
        '<span role="status" data-jq-copied="{}" data-jq-not-copied="{}"></span></span>',
        text,
        what,
        _("copy"),
        _("copied"),
        _("cannot be copied"),
    )


@register.simple_tag
def query(**parameters: Any) -> str:
    """Parameters of a link, encoded; those that are empty are left out."""
    return urlencode({name: value for name, value in parameters.items() if value})
