"""The options of ``JOBQUEUE["ALERTS"]``: who is told of problems, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_email

from .conf import get_settings
from .timings import OVERDUE_SECONDS

EXAMPLE = "For example {'mail': ['ops@example.com'], 'url': 'https://example.com/admin/'}."
LONGEST = 86_400


class AlertBy(StrEnum):
    """A way to tell operators of a problem."""

    MAIL = "mail"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class AlertOptions:
    """Who is told of problems: addresses and the URL of a webhook; the admin's URL, for links; and when."""

    mail: Sequence[str] = ()
    webhook: str = ""
    url: str = ""  # of the admin's first page
    after_seconds: float = OVERDUE_SECONDS  # how long a queue must be stopped, or a schedule late

    @property
    def channels(self) -> list[AlertBy]:
        return [channel for channel, is_on in ((AlertBy.MAIL, self.mail), (AlertBy.WEBHOOK, self.webhook)) if is_on]


def alert_options() -> AlertOptions:
    """The options of the project. Raises ``ImproperlyConfigured``, which lists everything that is wrong with them."""
    given = get_settings().ALERTS
    problems = [f"{message} {hint}".strip() for message, hint in find_problems(given)]
    if problems:
        raise ImproperlyConfigured(" ".join(problems))
    return AlertOptions(**given)


def find_problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with these options, and what to do. A URL may be a secret, so no message contains it."""
    names = [field.name for field in fields(AlertOptions)]
    for name, value in given.items():
        if name not in names:
            close = get_close_matches(str(name), names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"The options are {', '.join(names)}."
            yield f"JOBQUEUE['ALERTS'][{name!r}] is not an option.", hint
        elif problem := _PROBLEMS[name](value):
            yield f"JOBQUEUE['ALERTS'][{name!r}] {problem}.", EXAMPLE
    if given and not given.get("mail") and not given.get("webhook"):
        yield "JOBQUEUE['ALERTS'] has neither 'mail' nor 'webhook', so operators are not told of problems.", EXAMPLE


def _with_addresses(value: object) -> str:
    if not isinstance(value, list | tuple):
        return "must be a list of mail addresses"
    for address in value:
        try:
            validate_email(address)
        except (ValidationError, TypeError):
            return f"contains {address!r}, which is not a mail address"
    return ""


def _with_url(value: object) -> str:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unfinished IPv6 address
        is_url = False
    if not is_url:
        return "must be a URL that begins with https:// or http://"
    return "must not contain a user name or password" if "@" in parts.netloc else ""


def _with_seconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= LONGEST:
        return f"must be a number of seconds from 1 to {LONGEST:,}"
    return ""


_PROBLEMS = {"mail": _with_addresses, "webhook": _with_url, "url": _with_url, "after_seconds": _with_seconds}
