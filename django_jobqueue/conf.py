"""The settings of the app: the dict ``JOBQUEUE``, read as one frozen object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

MEGABYTE = 1024 * 1024
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Problem(NamedTuple):
    """What is wrong with the settings: a system check reports it, ``get_settings()`` raises it."""

    id: str
    message: str
    hint: str = ""
    name: str = ""  # of the setting


def _setting(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    QUEUES: Mapping[str, Mapping[str, Any]] = _setting(
        _EMPTY, "Queues that exist as soon as migrate has run: name → options."
    )
    SCHEDULES: Mapping[str, Mapping[str, Any]] = _setting(
        _EMPTY, "Schedules that exist as soon as migrate has run: name → options."
    )
    QUEUE_DEFAULTS: Mapping[str, Any] = _setting(
        _EMPTY, "Default options of queues; copied into a queue when it is created."
    )
    NOTIFY: bool = _setting(True, "Wake workers with NOTIFY; without it they find jobs by polling.")
    POOLER: bool = _setting(
        False, "Connections go through a transaction pooler: workers use neither LISTEN nor session locks."
    )
    MAX_DATA_BYTES: int = _setting(
        262_144, "The largest size of a job's data as JSON text, in bytes.", minimum=1, maximum=10 * MEGABYTE
    )
    MAX_OUTPUT_BYTES: int = _setting(
        262_144,
        "The largest size of an output as JSON text, in bytes; a larger output is cut.",
        minimum=200,
        maximum=10 * MEGABYTE,
    )
    MAX_DEPTH: int = _setting(100, "How deeply a job's data may be nested.", minimum=1, maximum=500)
    MAX_ERROR_CHARS: int = _setting(20_000, "How many characters of an error are kept.", minimum=100, maximum=MEGABYTE)
    ENCODER: str | None = _setting(
        None, "Dotted path of a json.JSONEncoder class whose default() converts objects that JSON does not support."
    )
    CRASH_LIMIT: int = _setting(3, "A job that crashes its worker this many times in a row fails for good.", minimum=1)
    HAND_OVER_LIMIT: int = _setting(
        100,
        "How many jobs of one lane a worker runs in a row before other lanes get a turn; 0 turns handing over off.",
        minimum=0,
    )
    LOCK_TIMEOUT_MS: int = _setting(
        2_000,
        "How long one try waits for a lock when a job is finished, or a partition is created or dropped.",
        minimum=1,
    )
    HANDLER_MODULES: Sequence[str] = _setting(
        ("jobs", "tasks"), "Modules of installed apps in which workers look for handlers."
    )
    HANDLER_GRACE_SECONDS: float = _setting(
        600.0,
        "How long a job waits for a worker that has its handler, while no live worker has, before it fails for good.",
        minimum=0.0,
        maximum=31_536_000.0,
    )
    AROUND: str | None = _setting(
        None,
        "Dotted path of a function that takes the job and returns a context manager; every handler runs inside it.",
    )
    CARRY: Sequence[str] = _setting(
        (), "Dotted paths of carriers, which take facts besides the data from the sender of a job to its handler."
    )
    SENTRY_RETRIES: bool = _setting(
        True,
        "Report also those failed attempts to Sentry after which another follows, as warnings.",
    )
    PROCESSES: int = _setting(1, "How many child processes a worker has, unless --processes is given.", minimum=1)
    CONCURRENCY: int = _setting(
        8, "How many handlers a child runs at once, each in a thread, unless --concurrency is given.", minimum=1
    )
    ASYNC_CONCURRENCY: int = _setting(100, "How many async handlers a child runs at once.", minimum=1)
    START_METHOD: str | None = _setting(
        None,
        "How runjobs starts its processes: 'fork', 'exec', or 'thread' for a worker in a single process. By default "
        "'fork' on Linux, 'exec' on macOS and 'thread' on Windows.",
        choices=("fork", "exec", "thread"),
    )
    RUNSERVER_WORKER: bool = _setting(
        False, "With DEBUG, manage.py runserver starts a worker, and restarts and stops it together with the server."
    )
    BATCH_SIZE: int = _setting(
        1_000, "The most jobs that a child claims or finishes at once.", minimum=1, maximum=10_000
    )
    PREFETCH_SECONDS: float = _setting(
        0.2, "How many seconds of work a child claims in advance, estimated from its recent speed.", minimum=0.0
    )
    FINISH_SECONDS: float = _setting(
        0.005, "How long a finished job waits for others, so that they are written together.", minimum=0.0, maximum=1.0
    )
    MEMORY_LIMIT_MB: int = _setting(
        0, "A child that uses more memory is replaced when its handlers have ended; 0 means no limit.", minimum=0
    )
    POLL_SECONDS: float = _setting(1.0, "How often workers poll for jobs they were not notified about.", minimum=0.01)
    MONITOR_SECONDS: int = _setting(
        60, "How often maintenance runs: it expires overdue jobs, releases stranded lanes and cleans up.", minimum=1
    )
    SCHEDULE_SECONDS: float = _setting(1.0, "How often workers check for due schedules.", minimum=0.01)
    STOP_GRACE_SECONDS: int = _setting(
        30,
        "How long handlers may keep running after a worker is told to stop. Also how long a live worker keeps a job "
        "that is past its deadline before another worker may claim it.",
        minimum=0,
    )
    EXPIRE_GRACE_SECONDS: float = _setting(
        5.0, "How long a handler past its deadline may take to stop before its process is replaced.", minimum=0.0
    )
    CANCEL_GRACE_SECONDS: int = _setting(
        300, "How long the handler of a cancelled job may keep running before its outcome counts as unknown.", minimum=0
    )
    WORKER_HEARTBEAT_SECONDS: float = _setting(2.0, "How often a worker sends a heartbeat.", minimum=0.05)
    WORKER_FENCE_SECONDS: float = _setting(
        10.0, "A worker that could not send a heartbeat for this long ends its own handlers.", minimum=0.1
    )
    WORKER_UNLOCKED_SECONDS: float = _setting(
        13.0,
        "How long a worker that lost its session lock may send no heartbeat before its jobs are recovered.",
        minimum=0.2,
    )
    WORKER_LOST_SECONDS: float = _setting(
        27.0, "How long any worker may send no heartbeat before its jobs are recovered.", minimum=0.2
    )
    ALERTS: Mapping[str, Any] = _setting(
        _EMPTY,
        "Who is told when keys block, a queue stands still or a schedule is late: mail, webhook, url, after_seconds.",
    )
    STATISTICS_DAYS: int = _setting(30, "How long the statistics per queue and minute are kept.", minimum=1)
    ARCHIVE: bool = _setting(False, "Keep old finished jobs until they are written to the archive.")
    LAKE: str | None = _setting(None, "Where archived jobs are: a folder, or a URL that Spark can write to.")
    SPARK_NICENESS: int = _setting(
        10, "The niceness of Spark processes that django_jobqueue starts on this machine.", minimum=0, maximum=19
    )
    SENT_ROW_DAYS: int = _setting(
        90,
        "How long bulk send remembers a row of a file after it was last seen, so that each row is sent once.",
        minimum=1,
    )
    REDACT: Sequence[str] = _setting(
        (
            "password",
            "passwd",
            "pwd",
            "passphrase",
            "token",
            "secret",
            "authorization",
            "cookie",
            "api_key",
            "private_key",
        ),
        "Keys whose values are hidden in the admin, by manage.py jobs, in errors, logs, traces, alerts and the lake.",
    )


FIELDS: Mapping[str, dataclasses.Field[Any]] = MappingProxyType(
    {field.name: field for field in dataclasses.fields(Settings)}
)


@cache
def get_settings() -> Settings:
    """The settings of the project. Raises ``ImproperlyConfigured``, which lists everything that is wrong with them."""
    raw = raw_settings()
    problems = [f"{problem.message} {problem.hint}".strip() for problem in find_problems(raw)]
    if problems:
        raise ImproperlyConfigured(" ".join(problems))
    return valid_settings()


@cache
def valid_settings() -> Settings:
    """The settings of the project without the wrong ones, so that system checks can go on to check the others."""
    raw, wrong = raw_settings(), wrong_settings()
    given = raw if isinstance(raw, dict) else {}
    return Settings(**{name: _frozen(value) for name, value in given.items() if name not in wrong})


def wrong_settings() -> set[str]:
    """The names in ``JOBQUEUE`` that are no settings, or have values of another type or out of range."""
    return {problem.name for problem in find_problems(raw_settings())}


@cache
def get_encoder() -> type[json.JSONEncoder] | None:
    """The class that ``ENCODER`` names. Raises ``ImproperlyConfigured`` if it is not a JSON encoder."""
    return encoder_at(get_settings().ENCODER)


def encoder_at(path: str | None) -> type[json.JSONEncoder] | None:
    """The class with this path. Raises ``ImproperlyConfigured`` if it is not a JSON encoder."""
    if path is None:
        return None
    try:
        encoder = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"JOBQUEUE['ENCODER']: {path!r} cannot be imported: {error}.") from error
    if isinstance(encoder, type) and issubclass(encoder, json.JSONEncoder):
        return encoder
    raise ImproperlyConfigured(f"JOBQUEUE['ENCODER']: {path!r} is not a subclass of json.JSONEncoder.")


def raw_settings() -> Any:
    """The project's ``JOBQUEUE``, not yet checked."""
    return getattr(django_settings, "JOBQUEUE", {})


def wrong_vendor(alias: str, vendor: str) -> tuple[str, str]:
    """What is wrong with a database that is not PostgreSQL, and what to do."""
    return (
        f"Jobs would be stored in the database {alias!r}, which is {vendor}, not PostgreSQL.",
        "Use PostgreSQL there, or route the app 'jobqueue' to a database that does.",
    )


def task_queues() -> list[str]:
    """The queues that ``TASKS`` gives to our backend. They need not be declared in ``JOBQUEUE`` too."""
    backends = getattr(django_settings, "TASKS", None) or {}
    ours = [options for options in backends.values() if str(options.get("BACKEND", "")).startswith("django_jobqueue.")]
    return sorted({str(name) for options in ours for name in options.get("QUEUES", ())})


def declared_queues() -> set[str]:
    """The queues that the settings declare; ``default`` always exists."""
    return {"default", *valid_settings().QUEUES, *task_queues()}


def declared_dead_letters() -> set[str]:
    """The queues that keep the dead letters of declared queues."""
    settings = get_settings()
    options = [settings.QUEUE_DEFAULTS, *settings.QUEUES.values()]
    return {str(option["dead_letter"]) for option in options if option.get("dead_letter")}


def find_problems(raw: object) -> Iterator[Problem]:
    """What is wrong with ``JOBQUEUE`` itself; the options of its queues and schedules are checked in ``checks.py``."""
    if not isinstance(raw, dict):
        yield Problem("jobqueue.E001", f"JOBQUEUE must be a dict, not {_kind(raw)}.")
        return
    for name, value in raw.items():
        if name not in FIELDS:
            yield Problem("jobqueue.E002", f"JOBQUEUE[{name!r}] is not a setting.", _closest(name), name)
        elif problem := _problem_with(FIELDS[name], value):
            hint = f"{name}: {FIELDS[name].metadata['doc']}"
            yield Problem("jobqueue.E003", f"JOBQUEUE[{name!r}] {problem}.", hint, name)


def _closest(name: object) -> str:
    close = get_close_matches(str(name).upper(), FIELDS, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The settings are {', '.join(FIELDS)}."


def _problem_with(field: dataclasses.Field[Any], value: object) -> str:
    """What a setting must be and is not; empty if its value is valid."""
    default = DEFAULTS[field.name]
    if choices := field.metadata["choices"]:
        known = ", ".join(map(repr, choices))
        return "" if value is None or value in choices else f"must be None or one of {known}, not {value!r}"
    if default is None:
        return "" if value is None or isinstance(value, str) else f"must be a string or None, not {_kind(value)}"
    if isinstance(default, Mapping):
        return "" if isinstance(value, Mapping) else f"must be a dict, not {_kind(value)}"
    if isinstance(default, tuple):
        return "" if _are_strings(value) else "must be a list of strings"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else f"must be True or False, not {_kind(value)}"
    return _problem_with_number(field, value, float if isinstance(default, float) else int)


def _problem_with_number(field: dataclasses.Field[Any], value: object, kind: type[int] | type[float]) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        return f"must be {'a number' if kind is float else 'a whole number'}, not {_kind(value)}"
    minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
    if minimum is not None and not value >= minimum:  # also refuses NaN
        return f"is {value!r}; it must be at least {minimum:,}"
    if maximum is not None and value > maximum:
        return f"is {value:,}; it must be at most {maximum:,}"
    if value == inf:
        return "is infinite; it must be a number of seconds"
    return ""


def _are_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType(dict(value))
    return tuple(value) if isinstance(value, list) else value


DEFAULTS: Mapping[str, Any] = MappingProxyType({name: getattr(Settings(), name) for name in FIELDS})


def _clear_caches(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBQUEUE":
        get_settings.cache_clear()
        valid_settings.cache_clear()
        get_encoder.cache_clear()


setting_changed.connect(_clear_caches, dispatch_uid="jobqueue_forget_settings")
