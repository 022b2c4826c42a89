"""The options of schedules: what each may be, wherever it is given, by a verb, in settings or in a form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from .conf import get_encoder, get_settings
from .cron import check_cron, check_timezone
from .encoding import check_queue_name, check_tags, check_text, encode
from .exceptions import InvalidOption
from .options import JOB_OPTIONS, LARGEST, check_int, clean_job_options

MAX_NAME = 100
REQUIRED = ("queue", "cron")


class CatchUp(models.TextChoices):
    """What to do with the slots that were due while no scheduler ran."""

    NONE = "none", _("skip them")
    LAST = "last", _("send the latest")
    ALL = "all", _("send them all")


def check_schedule_name(value: object) -> str:
    """``value`` as the name of a schedule; ``InvalidOption`` if it cannot be one."""
    name = check_text(value, option="name", max_length=MAX_NAME, required=True)
    if name != name.strip() or not name.isprintable():
        raise InvalidOption("name", f"{name[:40]!a} begins or ends with a space, or cannot be printed")
    return name


def clean_schedule_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The given options of a schedule as its columns hold them; ``InvalidOption`` or ``InvalidData`` if one is wrong.

    Options of jobs are found together under ``options``.
    """
    cleaned, of_jobs = dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        if name in _CHECKS:
            cleaned[name] = _CHECKS[name](value)
        elif name in JOB_OPTIONS:
            of_jobs |= clean_job_options({name: value})
        else:
            raise _unknown(name)
    if "cron" in cleaned and "timezone" in cleaned:
        check_cron(cleaned["cron"], cleaned["timezone"])  # whether the clock there ever shows such a time
    return cleaned | {"options": of_jobs}


def _data(value: object) -> Any:
    settings = get_settings()
    if value is None:
        return None
    text = encode(value, max_bytes=settings.MAX_DATA_BYTES, max_depth=settings.MAX_DEPTH, encoder=get_encoder())
    return json.loads(text)


def _catch_up(value: object) -> str:
    if isinstance(value, str) and value in CatchUp.values:
        return str.__str__(value)
    expected = " or ".join(map(repr, CatchUp.values))
    raise InvalidOption("catch_up", f"expected {expected}, got {_shown(value)}")


def _enabled(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidOption("enabled", f"expected True or False, got {_shown(value)}")


def _queue(value: object) -> str:
    try:
        return check_queue_name(getattr(value, "name", value) if isinstance(value, models.Model) else value)
    except InvalidOption as error:
        raise InvalidOption("queue", error.problem, hint=error.hint) from None


def _text(option: str) -> Callable[[object], str]:
    return lambda value: check_text(value, option=option, max_length=255)


def _shown(value: object) -> str:
    return ascii(value[:40]) if isinstance(value, str) else f"a value of type {type(value).__name__}"


def _unknown(name: object) -> InvalidOption:
    close = get_close_matches(str(name)[:100].lower(), SCHEDULE_OPTIONS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(SCHEDULE_OPTIONS)}."
    return InvalidOption(str(name)[:100], "there is no such option of schedules", hint=hint)


_CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType(
    {
        "queue": _queue,
        "cron": check_cron,
        "timezone": check_timezone,
        "handler": _text("handler"),
        "data": _data,
        "priority": lambda value: check_int(value, option="priority", minimum=-LARGEST, maximum=LARGEST),
        "singleton_key": _text("singleton_key"),
        "group_key": _text("group_key"),
        "tags": check_tags,
        "catch_up": _catch_up,
        "enabled": _enabled,
    }
)
SCHEDULE_OPTIONS: tuple[str, ...] = (*_CHECKS, *JOB_OPTIONS)
