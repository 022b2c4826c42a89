"""System checks: errors in the settings, and differences between the settings and the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, ProgrammingError, connections, router, transaction
from django.utils.module_loading import import_string

from . import alert_options, carriers, conf, handlers, timings
from .cron import check_timezone
from .exceptions import InvalidOption, JobQueueError
from .log_texts import error_line
from .options import (
    QUEUE_DEFAULTS,
    REQUIRED_OF_SCHEDULES,
    check_schedule_name,
    clean_queue_options,
    clean_schedule_options,
    schedule_defaults,
)
from .policies import ORDERED, QueuePolicy
from .text import check_queue_name

if TYPE_CHECKING:
    pass

MIN_POSTGRESQL = 15
MANY_PARTITIONS = 50
TYPING_ERROR = 0.8  # how similar two names are that differ by a letter or two
DEAD_LETTER_POLICIES = frozenset({QueuePolicy.STANDARD.value, ORDERED.value})

Messages = Iterator[checks.CheckMessage]


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """``JOBQUEUE`` is a dict of known settings with valid values."""
    wrong = [_error(problem.id, problem.message, problem.hint) for problem in conf.find_problems(conf.raw_settings())]
    return [*wrong, *_encoder(), *_around(), *_carriers(), *_timings(), *_alerts()]


class _Margin(NamedTuple):
    """A setting that must be at least ``times`` another one, plus ``seconds``."""

    longer: str
    shorter: str
    times: int
    seconds: float
    otherwise: str


_OVERLAP = "Otherwise another worker may start a job while its handler is still running."
_MARGINS = (
    _Margin(
        "WORKER_FENCE_SECONDS", "WORKER_HEARTBEAT_SECONDS", timings.HEARTBEATS_PER_FENCE, 0.0,
        "Otherwise a healthy worker ends its own handlers when one heartbeat is late.",
    ),
    _Margin("WORKER_UNLOCKED_SECONDS", "WORKER_FENCE_SECONDS", 1, timings.FENCE_KILL_SECONDS, _OVERLAP),
    # No process is ended between these two, but a worker without its lock must not get more time than one with it.
    _Margin("WORKER_LOST_SECONDS", "WORKER_UNLOCKED_SECONDS", 1, 0.0, _OVERLAP),
    _Margin("STOP_GRACE_SECONDS", "EXPIRE_GRACE_SECONDS", 1, timings.EXPIRE_KILL_SECONDS, _OVERLAP),
)  # fmt: skip


def _timings() -> Messages:
    settings, wrong = conf.valid_settings(), conf.wrong_settings()
    for margin in _MARGINS:
        if not wrong.isdisjoint({margin.longer, margin.shorter}):
            continue
        longer, shorter = getattr(settings, margin.longer), getattr(settings, margin.shorter)
        least = round(margin.times * shorter + margin.seconds, 3)
        if longer < least:
            yield _error(
                "jobqueue.E015",
                f"JOBQUEUE[{margin.longer!r}] is {longer:g}; with JOBQUEUE[{margin.shorter!r}] = {shorter:g} "
                f"it must be at least {least:g}.",
                f"{margin.otherwise} {_remedy(margin, longer, least)}",
            )


def _remedy(margin: _Margin, longer: float, least: float) -> str:
    """What to set: the longer time to the smallest valid value, or the shorter one to the largest."""
    enough = ceil(least) if isinstance(conf.DEFAULTS[margin.longer], int) else least
    short_enough = round((longer - margin.seconds) / margin.times, 3)
    if short_enough < conf.FIELDS[margin.shorter].metadata["minimum"]:
        return f"Set {margin.longer} to {enough:g} or more."
    return f"Set {margin.longer} to {enough:g} or more, or {margin.shorter} to {short_enough:g} or less."


def _around() -> Messages:
    path = conf.valid_settings().AROUND
    if path is None:
        return
    try:
        import_string(path)
    except ImportError as error:
        hint = "Name a function that takes the job and returns a context manager."
        yield _error("jobqueue.E016", f"JOBQUEUE['AROUND']: {path!r} cannot be imported: {error}.", hint)


def _carriers() -> Messages:
    for path in conf.valid_settings().CARRY:
        try:
            carriers.imported([path])
        except ImproperlyConfigured as error:
            hint = "Name classes, for example 'django_jobqueue.carriers.RequestId'."
            yield _error("jobqueue.E020", str(error), hint)


def _alerts() -> Messages:
    for message, hint in alert_options.find_problems(conf.valid_settings().ALERTS):
        yield _error("jobqueue.E026", message, hint)


def _encoder() -> Messages:
    try:
        conf.encoder_at(conf.valid_settings().ENCODER)
    except ImproperlyConfigured as error:
        hint = "Name a class, for example 'django.core.serializers.json.DjangoJSONEncoder'."
        yield _error("jobqueue.E008", str(error), hint)


def check_queues(**kwargs: Any) -> list[checks.CheckMessage]:
    """The queues declared in settings have valid options, each alone and all together."""
    return [*_wrong_options(), *_undeclared(), *_loops(), *_dead_letter_policies()]


def _wrong_options() -> Messages:
    settings = conf.valid_settings()
    yield from _wrong_in("JOBQUEUE['QUEUE_DEFAULTS']", settings.QUEUE_DEFAULTS)
    for name, options in settings.QUEUES.items():
        where = f"JOBQUEUE['QUEUES'][{name!r}]"
        try:
            check_queue_name(name)
        except InvalidOption as error:
            yield _error("jobqueue.E004", f"{where}: {error.option}: {error.problem}.", error.hint)
        yield from _wrong_in(where, options)


def _wrong_in(where: str, options: object) -> Messages:
    """One message per option, so that all can be corrected at once."""
    if not isinstance(options, Mapping):
        yield _error("jobqueue.E004", f"{where} must be a dict of options, not {type(options).__name__}.")
        return
    for name, value in options.items():
        if problem := _refusal(clean_queue_options, {name: value}):
            yield _error("jobqueue.E004", f"{where}: {problem.message}", problem.hint)


def _undeclared() -> Messages:
    declared = _declared()
    for name, target in _dead_letters().items():
        if target not in declared:
            yield checks.Warning(
                f"The dead letter {target!r} of queue {name!r} is not in JOBQUEUE['QUEUES'].",
                hint="Declare it, or create it with create_queue(). Until it exists, no copies are kept.",
                id="jobqueue.W001",
            )


def _loops() -> Messages:
    targets = _dead_letters()
    reported: set[str] = set()
    for start in targets:
        loop = _loop_through(start, targets)
        if loop and reported.isdisjoint(loop):
            reported.update(loop)
            yield _error(
                "jobqueue.E005",
                f"Dead-letter queues form a loop: {' → '.join([*loop, start])}.",
                "Set dead_letter to None on one of these queues.",
            )


def _loop_through(start: str, targets: Mapping[str, str]) -> list[str]:
    """The queues from ``start`` back to it; empty if following dead letters does not return to ``start``."""
    visited, name = [start], targets.get(start)
    while name is not None and name not in visited:
        visited.append(name)
        name = targets.get(name)
    return visited if name == start else []


def _dead_letter_policies() -> Messages:
    declared = _declared()
    for name in sorted(set(_dead_letters().values()) & declared.keys()):
        policy = declared[name]["policy"]
        if policy not in DEAD_LETTER_POLICIES:
            yield _error(
                "jobqueue.E006",
                f"The dead-letter queue {name!r} has the policy {policy!r}.",
                "Use 'standard' or 'key_strict_fifo': queues with other policies can refuse a copy.",
            )


def _declared() -> dict[str, dict[str, Any]]:
    """The declared queues with all their options, including defaults; wrong options count as not given."""
    settings = conf.valid_settings()
    defaults = {**QUEUE_DEFAULTS, **_valid(settings.QUEUE_DEFAULTS)}
    return {
        name: _defaults_of(name, defaults) | _valid(options)
        for name, options in settings.QUEUES.items()
        if not _refusal(check_queue_name, name)
    }


def _valid(options: object) -> dict[str, Any]:
    """The options of a queue that are right."""
    given = options if isinstance(options, Mapping) else {}
    right = {name: value for name, value in given.items() if not _refusal(clean_queue_options, {name: value})}
    return clean_queue_options(right)


def _defaults_of(name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    if defaults["dead_letter"] == name:  # as create_queue() does: the common dead-letter queue has none itself
        return {**defaults, "dead_letter": None}
    return defaults


def _dead_letters() -> dict[str, str]:
    letters = ((name, options["dead_letter"]) for name, options in _declared().items())
    return {name: target for name, target in letters if target is not None}


def check_schedules(**kwargs: Any) -> list[checks.CheckMessage]:
    """The schedules declared in settings have valid options and send to declared queues."""
    schedules = conf.valid_settings().SCHEDULES
    wrong = [message for name, options in schedules.items() for message in _in_schedule(name, options)]
    return [*wrong, *_schedule_queues(), *_schedule_handlers()]


def _in_schedule(name: object, options: object) -> Messages:
    """One message per option, so that all can be corrected at once."""
    where = f"JOBQUEUE['SCHEDULES'][{name!r:.60}]"
    if problem := _refusal(check_schedule_name, name):
        yield _error("jobqueue.E011", f"{where}: {problem.message}", problem.hint)
    if not isinstance(options, Mapping):
        yield _error("jobqueue.E011", f"{where} must be a dict of options, not {type(options).__name__}.")
        return
    for option in REQUIRED_OF_SCHEDULES:
        if option not in options:
            yield _error("jobqueue.E011", f"{where}: {option} is missing.", f"Every schedule needs {option!r}.")
    timezone = options.get("timezone", schedule_defaults()["timezone"])
    for option, value in options.items():
        checked = {option: value}
        if option == "cron" and not _refusal(check_timezone, timezone):
            checked["timezone"] = timezone  # whether it is ever due may depend on the zone
        if problem := _refusal(clean_schedule_options, checked):
            id = {"cron": "jobqueue.E012", "timezone": "jobqueue.E013"}.get(option, "jobqueue.E011")
            yield _error(id, f"{where}: {problem.message}", problem.hint)


def _refusal(check: Callable[[Any], object], value: object) -> JobQueueError | None:
    try:
        check(value)
    except JobQueueError as error:
        return error
    except ImproperlyConfigured:  # a setting is wrong, which another check reports
        return None
    return None


def _schedule_queues() -> Messages:
    settings = conf.valid_settings()
    declared = {"default": {**QUEUE_DEFAULTS, **_valid(settings.QUEUE_DEFAULTS)}} | _declared()
    for name, options in settings.SCHEDULES.items():
        given: Any = options  # may be anything: _in_schedule() reports it
        if not isinstance(given, Mapping) or _refusal(check_queue_name, given.get("queue")):
            continue
        queue: str = given["queue"]
        if queue not in declared:
            close = get_close_matches(queue, declared, n=1)
            yield _error(
                "jobqueue.E014",
                f"The schedule {name!r} sends to the queue {queue!r}, which is not in JOBQUEUE['QUEUES'].",
                f"Did you mean {close[0]!r}?" if close else "Declare the queue.",
            )
        elif declared[queue]["policy"] == ORDERED and not options.get("singleton_key"):
            yield _error(
                "jobqueue.E011",
                f"JOBQUEUE['SCHEDULES'][{name!r}]: singleton_key is missing.",
                f"The queue {queue!r} is ordered: its jobs need a singleton_key.",
            )


def _schedule_handlers() -> Messages:
    """Import the handlers only if a schedule names one that is not known yet."""
    schedules: Mapping[str, Any] = conf.valid_settings().SCHEDULES
    named = {name: str(o.get("handler") or "") for name, o in schedules.items() if isinstance(o, Mapping)}
    unknown = {schedule: handler for schedule, handler in named.items() if handler and not handlers.find("", handler)}
    can_tell = unknown and not _import_problem()
    for schedule, handler in unknown.items() if can_tell else ():
        if handlers.find("", handler) is None:
            modules = ", ".join(conf.valid_settings().HANDLER_MODULES)
            yield _error(
                "jobqueue.E025",
                f"JOBQUEUE['SCHEDULES'][{schedule!r}]: {handlers.missing_text('', handler)}",
                f"Name a function with @job in a module of an installed app (modules searched: {modules}).",
            )


def check_handlers(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Handlers can be imported, and their queues are declared, or exist. Asks the database only if the check may.

    Where it may not, it reports only a queue with nearly the name of a declared one: a queue may have been created by
    ``create_queue()``.
    """
    from .models import Queue

    if problem := _import_problem():
        hint = "Workers do not start without them. The traceback is in the output of manage.py runjobs."
        return [checks.Warning(f"The handlers cannot be imported ({problem}).", hint=hint, id="jobqueue.W011")]
    declared = conf.declared_queues()
    unknown = [handler for handler in handlers.all_handlers() if handler.queue not in declared]
    alias = router.db_for_write(Queue)
    try:
        stored = set(_stored_queues(alias)) if unknown and alias in (databases or ()) else set()
    except (OperationalError, InterfaceError):  # Django 6.1 passes all databases, also to a check without a server
        stored = set()
    return list(_unknown_queues(unknown, declared, stored))


def _import_problem() -> str | None:
    """Import the handlers of the project. Returns why they cannot be imported."""
    try:
        handlers.autodiscover()
    except Exception as error:  # a module of the project may raise anything
        return error_line(error)
    return None


def _unknown_queues(
    unknown: Sequence[handlers.Handler[..., Any, Any]], declared: set[str], stored: set[str]
) -> Messages:
    for handler in unknown:
        close = get_close_matches(handler.queue, sorted(declared | stored), n=1, cutoff=0.6 if stored else TYPING_ERROR)
        if handler.queue not in stored and (stored or close):
            where = "does not exist" if stored else "is not declared"
            yield checks.Warning(
                f"The handler {handler.name!r} is for the queue {handler.queue!r}, which {where}.",
                hint=f"Did you mean {close[0]!r}?" if close else "Declare it in JOBQUEUE['QUEUES'], or create it.",
                id="jobqueue.W010",
            )


def check_vendor(**kwargs: Any) -> list[checks.CheckMessage]:
    """Jobs are stored in PostgreSQL. Reads the configuration without connecting to the server."""
    from .models import Job

    alias = router.db_for_write(Job)
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        return []
    return [_error("jobqueue.E007", *conf.wrong_vendor(alias, vendor))]


def check_driver(**kwargs: Any) -> list[checks.CheckMessage]:
    """With psycopg 3 installed, Django uses it instead of psycopg2, for every database of the project."""
    if find_spec("psycopg2") is None:
        return []
    return [
        checks.Info(
            "psycopg2 is installed, but Django uses psycopg 3 for all databases: it prefers it, and django_jobqueue "
            "needs it.",
            hint="The page 'Projects with psycopg2' of the documentation says what differs. Then uninstall psycopg2, "
            "or add 'jobqueue.I001' to SILENCED_SYSTEM_CHECKS.",
            id="jobqueue.I001",
        )
    ]


def check_databases(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """The server is recent enough, and its queues match the settings."""
    from .models import Queue

    messages: list[checks.CheckMessage] = []
    for alias in databases or ():
        if connections[alias].vendor == "postgresql" and router.allow_migrate_model(alias, Queue):
            messages += [*_version(alias), *_rows(alias)]
    return messages


def _version(alias: str) -> Messages:
    connection: Any = connections[alias]  # pg_version is PostgreSQL's own
    if connection.pg_version < MIN_POSTGRESQL * 10_000:
        yield _error(
            "jobqueue.E009",
            f"The server of database {alias!r} is PostgreSQL {connection.pg_version // 10_000}.",
            f"PostgreSQL {MIN_POSTGRESQL} or later is required.",
        )


def _rows(alias: str) -> Messages:
    stored = _stored_queues(alias)
    yield from _changed(stored)
    partitions = sum(partition for _, partition in stored.values())
    if partitions > MANY_PARTITIONS:
        yield checks.Warning(
            f"Database {alias!r} has {partitions} queues with a partition of their own.",
            hint=f"With more than {MANY_PARTITIONS}, queries that do not name their queue take longer to plan.",
            id="jobqueue.W002",
        )


def _stored_queues(alias: str) -> dict[str, tuple[str, bool]]:
    """Policy and partition by name; empty if the table does not exist yet."""
    from .models import Queue

    if Queue._meta.db_table not in connections[alias].introspection.table_names():
        return {}
    rows = Queue.objects.using(alias).order_by().values_list("name", "policy", "partition")
    try:
        with transaction.atomic(using=alias):  # an error must not abort the caller's transaction
            return {name: (policy, partition) for name, policy, partition in rows}
    except ProgrammingError:  # a migration has yet to add a column
        return {}


def _changed(stored: Mapping[str, tuple[str, bool]]) -> Messages:
    settings = conf.valid_settings()
    if list(_wrong_in("", settings.QUEUE_DEFAULTS)):
        return
    for name, options in _declared().items():
        if name not in stored or list(_wrong_in("", settings.QUEUES[name])):
            continue
        for option, old in zip(("policy", "partition"), stored[name], strict=True):
            if (new := options[option]) != old:
                yield _error(
                    "jobqueue.E010",
                    f"Queue {name!r} has {option}={old!r}; JOBQUEUE['QUEUES'] declares {new!r}.",
                    "These options of a queue cannot change: declare a queue with another name and move the senders.",
                )


def _error(id: str, message: str, hint: str = "") -> checks.Error:
    return checks.Error(message, hint=hint or None, id=id)


def register() -> None:
    """Register these checks with Django; registering them again has no effect."""
    settings_checks: tuple[Callable[..., list[checks.CheckMessage]], ...] = (
        check_settings,
        check_queues,
        check_schedules,
        check_handlers,
        check_vendor,
        check_driver,
    )
    for check in settings_checks:
        checks.register(check, "jobqueue")
    checks.register(check_databases, "jobqueue", checks.Tags.database)


register()
