"""The options of queues, jobs and schedules: one table with the type, the limits and the default of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.timezone import is_naive

from .catch_up import CatchUp
from .conf import encoder_at, get_settings, valid_settings
from .cron import check_cron, check_timezone
from .encoding import encode
from .exceptions import InvalidOption
from .grouping import Grouping
from .policies import ALIASES, POLICIES, DelayedHead, OnExhausted, QueuePolicy
from .send_options import NOT_OF_ITEMS, OF_SENDS, closest
from .states import FailureReason, JobState
from .text import check_queue_name, check_tags, check_text

DAY = 24 * 60 * 60
YEAR = 366 * DAY
LARGEST = 2**31 - 1  # the columns are PostgreSQL integers
MAX_SCHEDULE_NAME = 100


@dataclass(frozen=True, slots=True)
class Option:
    """The type, the limits and the default of one option."""

    name: str
    kind: Callable[[Option, object], Any]
    default: Any
    nullable: bool = False
    minimum: int = 0
    choices: tuple[str, ...] = ()
    max_length: int = 255

    def clean(self, value: object) -> Any:
        """Return ``value`` as it is stored. Raises ``InvalidOption`` if it is not valid."""
        if value is None and self.nullable:
            return None
        return self.kind(self, value)

    def error(self, problem: str, hint: str = "") -> InvalidOption:
        return InvalidOption(self.name, problem, hint=hint)


def _seconds(option: Option, value: object) -> int:
    if isinstance(value, timedelta):
        return _in_range(option, -(-value // timedelta(seconds=1)))  # rounded up
    if isinstance(value, bool) or not isinstance(value, int):
        raise option.error(f"expected seconds as int or a timedelta, got {_shown(value)}")
    return _in_range(option, int(value))


def _count(option: Option, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise option.error(f"expected an int, got {_shown(value)}")
    return _in_range(option, int(value))


def _in_range(option: Option, value: int) -> int:
    if value < option.minimum:
        raise option.error(f"must be at least {option.minimum:,}, got {_number(value)}")
    if value > LARGEST:
        raise option.error(f"must be at most {LARGEST:,}, got {_number(value)}")
    return value


def _flag(option: Option, value: object) -> bool:
    if not isinstance(value, bool):
        raise option.error(f"expected True or False, got {_shown(value)}")
    return value


def _choice(option: Option, value: object) -> str:
    if isinstance(value, str) and value in option.choices:
        return str.__str__(value)
    raise option.error(
        f"expected {' or '.join(map(repr, option.choices))}, got {_shown(value)}",
        _guess(value, option.choices),
    )


def _policy(option: Option, value: object) -> str:
    return _choice(option, ALIASES[value] if isinstance(value, str) and value in ALIASES else value)


def _queue(option: Option, value: object) -> str:
    try:
        return check_queue_name(value)
    except InvalidOption as error:
        raise option.error(error.problem, error.hint) from None


def _queue_or_its_name(option: Option, value: object) -> str:
    return _queue(option, getattr(value, "name", value) if isinstance(value, models.Model) else value)


def _text(option: Option, value: object) -> str:
    return check_text(value, option=option.name, max_length=option.max_length)


def _cron(option: Option, value: object) -> str:
    return check_cron(value)


def _timezone(option: Option, value: object) -> str:
    return check_timezone(value)


def _tags(option: Option, value: object) -> list[str]:
    return check_tags(value)


def _priority(option: Option, value: object) -> int:
    return check_int(value, option=option.name, minimum=-LARGEST, maximum=LARGEST)


def _data(option: Option, value: object) -> Any:
    settings = valid_settings()  # system checks also check data if a setting is wrong
    encoder = encoder_at(settings.ENCODER)
    text = encode(value, max_bytes=settings.MAX_DATA_BYTES, max_depth=settings.MAX_DEPTH, encoder=encoder)
    return json.loads(text)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return ascii(value[:40])
    if value is None or isinstance(value, bool | float):
        return repr(value)
    return _number(value) if isinstance(value, int) else f"a value of type {type(value).__name__}"


def _number(value: int) -> str:
    return f"{value:,}" if value.bit_length() < 100 else "a much larger number"


def _guess(value: object, known: tuple[str, ...]) -> str:
    close = get_close_matches(value[:100].lower(), known, n=1) if isinstance(value, str) else []
    return f"Did you mean {close[0]!r}?" if close else ""


_JOB = (
    Option("retry_limit", _count, 2, nullable=True),
    Option("retry_delay", _seconds, 0),
    Option("retry_backoff", _flag, False),
    Option("retry_delay_max", _seconds, None, nullable=True, minimum=1),
    Option("expire_in_seconds", _seconds, 900, minimum=1),
    Option("heartbeat_seconds", _seconds, None, nullable=True, minimum=10),
    Option("retention_seconds", _seconds, 14 * DAY, minimum=1),
    Option("delete_after_seconds", _seconds, 7 * DAY),  # 0: never
    Option("delete_failed_after_seconds", _seconds, 7 * DAY),  # 0: never
)
_QUEUE = (
    Option("policy", _policy, QueuePolicy.STANDARD.value, choices=POLICIES),
    Option("partition", _flag, False),
    Option("dead_letter", _queue, None, nullable=True),
    Option("warning_queue_size", _count, None, nullable=True, minimum=1),
    Option("delayed_head", _choice, DelayedHead.PASS.value, choices=tuple(DelayedHead.values)),
    Option("on_exhausted", _choice, OnExhausted.BLOCK.value, choices=tuple(OnExhausted.values)),
    Option("description", _text, "", max_length=500),
)
_REQUIRED_OF_SCHEDULES = (
    Option("queue", _queue_or_its_name, None),
    Option("cron", _cron, None),
)
_SCHEDULE = (
    Option("timezone", _timezone, "UTC"),
    Option("handler", _text, ""),
    Option("data", _data, None, nullable=True),
    Option("priority", _priority, 0),
    Option("singleton_key", _text, ""),
    Option("group_key", _text, ""),
    Option("tags", _tags, ()),
    Option("catch_up", _choice, CatchUp.LAST.value, choices=tuple(CatchUp.values)),
    Option("enabled", _flag, True),
)
_OF_JOBS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _JOB})
_OF_QUEUES: Mapping[str, Option] = MappingProxyType({option.name: option for option in _QUEUE + _JOB})
_OF_SCHEDULES: Mapping[str, Option] = MappingProxyType(
    {option.name: option for option in _REQUIRED_OF_SCHEDULES + _SCHEDULE}
)

JOB_OPTIONS: tuple[str, ...] = tuple(_OF_JOBS)
QUEUE_OPTIONS: tuple[str, ...] = tuple(_OF_QUEUES)
SCHEDULE_OPTIONS: tuple[str, ...] = (*_OF_SCHEDULES, *JOB_OPTIONS)
REQUIRED_OF_SCHEDULES: tuple[str, ...] = tuple(option.name for option in _REQUIRED_OF_SCHEDULES)

# The defaults of the columns; settings and verbs may replace them.
QUEUE_DEFAULTS: Mapping[str, Any] = MappingProxyType({option.name: option.default for option in _QUEUE + _JOB})


def check_int(value: object, *, option: str, minimum: int, maximum: int) -> int:
    """``value``, if it is an int within these bounds; ``InvalidOption`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidOption(option, f"expected an int from {minimum:,} to {maximum:,}, got {_shown(value)}")
    return int(value)


def check_seconds(value: object, *, option: str, minimum: float, maximum: float) -> float:
    """``value`` in seconds, if it is a number or a timedelta within these bounds; ``InvalidOption`` otherwise."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        problem = f"expected {minimum:,} to {maximum:,} seconds as a number or timedelta, got {_shown(value)}"
        raise InvalidOption(option, problem)
    return float(value)


def check_moment(value: object, *, option: str = "start_after") -> datetime:
    """``value``, if it is a datetime with a time zone; ``InvalidOption`` otherwise."""
    if not isinstance(value, datetime):
        hint = "For a time from now, use delay." if isinstance(value, timedelta) else ""
        raise InvalidOption(option, f"expected a datetime, got {_shown(value)}", hint=hint)
    if is_naive(value):
        raise InvalidOption(
            option, "has no time zone", hint="Use an aware datetime, for example from django.utils.timezone.now()."
        )
    if not 1900 <= value.year <= 9000:  # PostgreSQL can store other years, but Python cannot read them back
        raise InvalidOption(option, f"the year {value.year} is out of range")
    return value


def check_reason(value: object) -> FailureReason:
    """The failure reason of that name; ``InvalidOption`` if there is none."""
    if not isinstance(value, str) or value not in FailureReason.values:
        raise InvalidOption("reason", f"expected one of {', '.join(FailureReason.values)}, got {_shown(value)}")
    return FailureReason(value)


def check_grouping(value: object) -> Grouping:
    """The way to read groups of that name; ``InvalidOption`` if there is none."""
    return Grouping(_choice(Option("grouping", _choice, None, choices=tuple(Grouping.values)), value))


def check_state(value: object) -> JobState:
    """The state of that name; ``InvalidOption`` if there is none."""
    if not isinstance(value, str) or value not in JobState.values:
        raise InvalidOption("state", f"expected one of {', '.join(JobState.values)}, got {_shown(value)}")
    return JobState(value)


def check_schedule_name(value: object) -> str:
    """``value`` as the name of a schedule; ``InvalidOption`` if it cannot be one."""
    name = check_text(value, option="name", max_length=MAX_SCHEDULE_NAME, required=True)
    if name != name.strip() or not name.isprintable():
        raise InvalidOption("name", f"{name[:40]!a} begins or ends with a space, or has unprintable characters")
    return name


def check_on_duplicate(value: object) -> None:
    """Raises ``InvalidOption`` unless ``value`` is ``'return'``, ``'ignore'`` or ``None``."""
    if value not in (None, "return", "ignore"):
        raise InvalidOption("on_duplicate", f"expected 'return', 'ignore' or None, got {value!r:.40}")


def check_ttl(ttl: object) -> timedelta:
    """``ttl`` as a time greater than zero, if it is a number of seconds or a timedelta; ``InvalidOption`` otherwise."""
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl == ttl and abs(ttl) < 10**11:
        ttl = timedelta(seconds=ttl)
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise InvalidOption("ttl", f"expected a time greater than zero, got {str(ttl)[:40]!r}")
    return ttl


def queue_defaults() -> dict[str, Any]:
    """The default options of a queue. Raises ``ImproperlyConfigured`` if ``QUEUE_DEFAULTS`` is wrong."""
    try:
        return {**QUEUE_DEFAULTS} | clean_queue_options(get_settings().QUEUE_DEFAULTS)
    except InvalidOption as error:
        raise ImproperlyConfigured(f"JOBQUEUE['QUEUE_DEFAULTS']: {error}") from error


def schedule_defaults() -> dict[str, Any]:
    """The default options of a schedule, without the required ones."""
    return {option.name: option.clean(option.default) for option in _SCHEDULE}


def clean_queue_options(options: Mapping[str, object], *, name: str | None = None) -> dict[str, Any]:
    """The given options of a queue as they are stored; ``InvalidOption`` for the first wrong one.

    If ``name`` is the name of the queue, the queue is refused as its own dead letter.
    """
    cleaned = _clean(options, _OF_QUEUES)
    if name is not None and cleaned.get("dead_letter") == name:
        raise InvalidOption("dead_letter", f"the queue {name!r} cannot be its own dead letter")
    return cleaned


def clean_job_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The given options of a job as they are stored; ``InvalidOption`` for the first wrong one."""
    return _clean(options, _OF_JOBS) if options else {}


def clean_schedule_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The given options of a schedule as they are stored; ``InvalidOption`` or ``InvalidData`` if one is wrong.

    Options of its jobs are returned together under ``options``.
    """
    cleaned, of_jobs = dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        if name in _OF_JOBS:
            of_jobs |= _clean({name: value}, _OF_JOBS)
        else:
            cleaned |= _clean({name: value}, _OF_SCHEDULES)
    if "cron" in cleaned and "timezone" in cleaned:
        check_cron(cleaned["cron"], cleaned["timezone"])  # whether the clock of that zone ever shows such a time
    return cleaned | {"options": of_jobs}


def _clean(options: Mapping[str, object], known: Mapping[str, Option]) -> dict[str, Any]:
    cleaned = {}
    for name, value in options.items():
        option = known.get(name)
        if option is None:
            raise _unknown(name, known)
        cleaned[name] = option.clean(value)
    return cleaned


def _unknown(name: object, known: Mapping[str, Option]) -> InvalidOption:
    shown = str(name)[:100]
    if known is _OF_JOBS:
        if name in _OF_QUEUES:
            return InvalidOption(shown, "is an option of queues, not of jobs")
        if name in NOT_OF_ITEMS:
            return InvalidOption(shown, "is an argument of send_many(), not of its items")
        names = ("data", *(option for option in OF_SENDS if option not in NOT_OF_ITEMS))
        return InvalidOption(shown, "there is no such option", hint=closest(shown, names))
    names = SCHEDULE_OPTIONS if known is _OF_SCHEDULES else tuple(known)
    of_what = " of schedules" if known is _OF_SCHEDULES else ""
    return InvalidOption(shown, f"there is no such option{of_what}", hint=closest(shown, names))
