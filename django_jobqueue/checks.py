"""System checks: what is wrong with the settings, and what in the database contradicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import ceil
from typing import Any, NamedTuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import ProgrammingError, connections, router, transaction
from django.utils.module_loading import import_string

from . import carriers, conf, timings
from .cron import check_timezone
from .exceptions import InvalidOption, JobQueueError
from .options import (
    REQUIRED_OF_SCHEDULES,
    check_schedule_name,
    clean_queue_options,
    clean_schedule_options,
    queue_defaults,
    schedule_defaults,
)
from .policies import ORDERED, QueuePolicy
from .text import check_queue_name

MIN_POSTGRESQL = 15
MANY_PARTITIONS = 50
DEAD_LETTER_POLICIES = frozenset({QueuePolicy.STANDARD.value, ORDERED.value})

Found = Iterator[checks.CheckMessage]


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """JOBQUEUE is a dict of known names with sensible values."""
    problems = list(conf.find_problems(conf.raw_settings()))
    return (
        [_error(*problem) for problem in problems] if problems else [*_encoder(), *_around(), *_carriers(), *_timings()]
    )


class _Room(NamedTuple):
    """One time of workers must be at least so many ``times`` another, and so many ``seconds`` more."""

    longer: str
    shorter: str
    times: int
    seconds: float
    otherwise: str


_OVERLAP = "Otherwise another worker may begin a job while its handler still runs."
_ROOM = (
    _Room(
        "WORKER_FENCE_SECONDS", "WORKER_HEARTBEAT_SECONDS", timings.HEARTBEATS_PER_FENCE, 0.0,
        "Otherwise a worker that is well ends its own handlers when one heartbeat is late.",
    ),
    _Room("WORKER_UNLOCKED_SECONDS", "WORKER_FENCE_SECONDS", 1, timings.FENCE_KILL_SECONDS, _OVERLAP),
    # No process is ended between these two: a lock that is gone must merely not mean more patience than one held.
    _Room("WORKER_LOST_SECONDS", "WORKER_UNLOCKED_SECONDS", 1, 0.0, _OVERLAP),
    _Room("STOP_GRACE_SECONDS", "EXPIRE_GRACE_SECONDS", 1, timings.EXPIRE_KILL_SECONDS, _OVERLAP),
)  # fmt: skip


def _timings() -> Found:
    settings = conf.get_settings()
    for room in _ROOM:
        longer, shorter = getattr(settings, room.longer), getattr(settings, room.shorter)
        least = round(room.times * shorter + room.seconds, 3)
        if longer < least:
            yield _error(
                "jobqueue.E015",
                f"JOBQUEUE[{room.longer!r}] is {longer:g}; with JOBQUEUE[{room.shorter!r}] = {shorter:g} "
                f"it must be at least {least:g}.",
                f"{room.otherwise} {_remedy(room, longer, least)}",
            )


def _remedy(room: _Room, longer: float, least: float) -> str:
    """What to set, so that both settings can have that value."""
    enough = ceil(least) if isinstance(conf.DEFAULTS[room.longer], int) else least
    short_enough = round((longer - room.seconds) / room.times, 3)
    if short_enough < conf.FIELDS[room.shorter].metadata["minimum"]:
        return f"Set {room.longer} to {enough:g} or more."
    return f"Set {room.longer} to {enough:g} or more, or {room.shorter} to {short_enough:g} or less."


def _around() -> Found:
    path = conf.get_settings().AROUND
    if path is None:
        return
    try:
        import_string(path)
    except ImportError as error:
        hint = "Name a function that takes the job and returns a context manager."
        yield _error("jobqueue.E016", f"JOBQUEUE['AROUND']: {path!r} cannot be imported: {error}.", hint)


def _carriers() -> Found:
    try:
        carriers.carriers()
    except ImproperlyConfigured as error:
        hint = "Name classes, for example 'django_jobqueue.carriers.RequestId'."
        yield _error("jobqueue.E020", str(error), hint)


def _encoder() -> Found:
    try:
        conf.get_encoder()
    except ImproperlyConfigured as error:
        hint = "Name a class, for example 'django.core.serializers.json.DjangoJSONEncoder'."
        yield _error("jobqueue.E008", str(error), hint)


def check_queues(**kwargs: Any) -> list[checks.CheckMessage]:
    """The queues declared in settings have options that make sense, alone and together."""
    if _is_wrong():
        return []
    wrong = list(_wrong_options())
    return wrong or [*_undeclared(), *_loops(), *_dead_letter_policies()]


def _wrong_options() -> Found:
    settings = conf.get_settings()
    yield from _wrong_in("JOBQUEUE['QUEUE_DEFAULTS']", settings.QUEUE_DEFAULTS)
    for name, options in settings.QUEUES.items():
        where = f"JOBQUEUE['QUEUES'][{name!r}]"
        try:
            check_queue_name(name)
        except InvalidOption as error:
            yield _error("jobqueue.E004", f"{where}: {error.option}: {error.problem}.", error.hint)
        yield from _wrong_in(where, options)


def _wrong_in(where: str, options: object) -> Found:
    """One message per option, so that all can be mended at once."""
    if not isinstance(options, Mapping):
        yield _error("jobqueue.E004", f"{where} must be a dict of options, not {type(options).__name__}.")
        return
    for name, value in options.items():
        try:
            clean_queue_options({name: value})
        except InvalidOption as error:
            yield _error("jobqueue.E004", f"{where}: {error.option}: {error.problem}.", error.hint)


def _undeclared() -> Found:
    declared = _declared()
    for name, target in _dead_letters().items():
        if target not in declared:
            yield checks.Warning(
                f"The dead letter {target!r} of queue {name!r} is not in JOBQUEUE['QUEUES'].",
                hint="Declare it, or create it with create_queue(): else no copies are kept.",
                id="jobqueue.W001",
            )


def _loops() -> Found:
    targets = _dead_letters()
    told: set[str] = set()
    for start in targets:
        loop = _loop_through(start, targets)
        if loop and told.isdisjoint(loop):
            told.update(loop)
            yield _error(
                "jobqueue.E005",
                f"Dead letters go in a circle: {' → '.join([*loop, start])}.",
                "Set dead_letter to None on the last queue of the chain.",
            )


def _loop_through(start: str, targets: Mapping[str, str]) -> list[str]:
    """The queues from ``start`` back to it; empty if the chain ends or circles elsewhere."""
    chain, name = [start], targets.get(start)
    while name is not None and name not in chain:
        chain.append(name)
        name = targets.get(name)
    return chain if name == start else []


def _dead_letter_policies() -> Found:
    declared = _declared()
    for name in sorted(set(_dead_letters().values()) & declared.keys()):
        policy = declared[name]["policy"]
        if policy not in DEAD_LETTER_POLICIES:
            yield _error(
                "jobqueue.E006",
                f"The dead-letter queue {name!r} has the policy {policy!r}.",
                "It must be 'standard' or 'key_strict_fifo': any other could refuse a copy.",
            )


def _declared() -> dict[str, dict[str, Any]]:
    """The declared queues with all their options: what is not given is the default."""
    declared = conf.get_settings().QUEUES
    return {name: _defaults_of(name) | clean_queue_options(options) for name, options in declared.items()}


def _defaults_of(name: str) -> dict[str, Any]:
    defaults = queue_defaults()
    if defaults["dead_letter"] == name:  # as create_queue() has it: the common dead letter has none
        defaults["dead_letter"] = None
    return defaults


def _dead_letters() -> dict[str, str]:
    letters = ((name, options["dead_letter"]) for name, options in _declared().items())
    return {name: target for name, target in letters if target is not None}


def check_schedules(**kwargs: Any) -> list[checks.CheckMessage]:
    """The schedules declared in settings have options that make sense, and send to queues that are declared."""
    if _is_wrong():
        return []
    found = [
        problem for name, options in conf.get_settings().SCHEDULES.items() for problem in _in_schedule(name, options)
    ]
    return found or ([] if list(_wrong_options()) else list(_schedule_queues()))


def _in_schedule(name: object, options: object) -> Found:
    """One message per option, so that all can be mended at once."""
    where = f"JOBQUEUE['SCHEDULES'][{name!r:.60}]"
    if problem := _refusal(check_schedule_name, name):
        yield _error("jobqueue.E011", f"{where}: {problem.message}", problem.hint)
    if not isinstance(options, Mapping):
        yield _error("jobqueue.E011", f"{where} must be a dict of options, not {type(options).__name__}.")
        return
    for option in REQUIRED_OF_SCHEDULES:
        if option not in options:
            yield _error("jobqueue.E011", f"{where}: {option}: is missing.", f"Every schedule has {option!r}.")
    timezone = options.get("timezone", schedule_defaults()["timezone"])
    for option, value in options.items():
        given = {option: value}
        if option == "cron" and not _refusal(check_timezone, timezone):
            given["timezone"] = timezone  # whether it is ever due may depend on the zone
        if problem := _refusal(clean_schedule_options, given):
            id = {"cron": "jobqueue.E012", "timezone": "jobqueue.E013"}.get(option, "jobqueue.E011")
            yield _error(id, f"{where}: {problem.message}", problem.hint)


def _refusal(check: Callable[[Any], object], value: object) -> JobQueueError | None:
    try:
        check(value)
    except JobQueueError as error:
        return error
    return None


def _schedule_queues() -> Found:
    declared = {"default": queue_defaults()} | _declared()
    for name, options in conf.get_settings().SCHEDULES.items():
        queue = options["queue"]
        if queue not in declared:
            close = get_close_matches(queue, declared, n=1)
            yield _error(
                "jobqueue.E014",
                f"The schedule {name!r} sends to the queue {queue!r}, which is not in JOBQUEUE['QUEUES'].",
                f"Did you mean {close[0]!r}?" if close else "Declare it.",
            )
        elif declared[queue]["policy"] == ORDERED and not options.get("singleton_key"):
            yield _error(
                "jobqueue.E011",
                f"JOBQUEUE['SCHEDULES'][{name!r}]: singleton_key: is missing.",
                f"The queue {queue!r} is ordered: its jobs need a key.",
            )


def check_vendor(**kwargs: Any) -> list[checks.CheckMessage]:
    """Jobs are written to PostgreSQL; asks the configuration, not the server."""
    from .models import Job

    alias = router.db_for_write(Job)
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        return []
    return [_error("jobqueue.E007", *conf.wrong_vendor(alias, vendor))]


def check_databases(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """The server is recent enough, and its queues are what settings declare."""
    from .models import Queue

    found: list[checks.CheckMessage] = []
    for alias in databases or ():
        if connections[alias].vendor == "postgresql" and router.allow_migrate_model(alias, Queue):
            found += [*_version(alias), *_rows(alias)]
    return found


def _version(alias: str) -> Found:
    connection: Any = connections[alias]  # pg_version is PostgreSQL's own
    if connection.pg_version < MIN_POSTGRESQL * 10_000:
        yield _error(
            "jobqueue.E009",
            f"The server of database {alias!r} is PostgreSQL {connection.pg_version // 10_000}.",
            f"PostgreSQL {MIN_POSTGRESQL} or later is needed.",
        )


def _rows(alias: str) -> Found:
    stored = _stored_queues(alias)
    if not _is_wrong() and not list(_wrong_options()):
        yield from _changed(stored)
    partitions = sum(partition for _, partition in stored.values())
    if partitions > MANY_PARTITIONS:
        yield checks.Warning(
            f"Database {alias!r} has {partitions} queues with a partition of their own.",
            hint=f"Above {MANY_PARTITIONS}, planning slows down what does not name its queue.",
            id="jobqueue.W002",
        )


def _stored_queues(alias: str) -> dict[str, tuple[str, bool]]:
    """Policy and partition by name; nothing while the table is not there yet."""
    from .models import Queue

    if Queue._meta.db_table not in connections[alias].introspection.table_names():
        return {}
    rows = Queue.objects.using(alias).order_by().values_list("name", "policy", "partition")
    try:
        with transaction.atomic(using=alias):  # an error must not spoil the transaction of whoever checks
            return {name: (policy, partition) for name, policy, partition in rows}
    except ProgrammingError:  # a migration has yet to add a column
        return {}


def _changed(stored: Mapping[str, tuple[str, bool]]) -> Found:
    for name, options in _declared().items():
        if name not in stored:
            continue
        for option, old in zip(("policy", "partition"), stored[name], strict=True):
            if (new := options[option]) != old:
                yield _error(
                    "jobqueue.E010",
                    f"Queue {name!r} has {option}={old!r}; JOBQUEUE['QUEUES'] declares {new!r}.",
                    "It cannot change: declare a queue of another name and move the senders.",
                )


def _is_wrong() -> bool:
    return next(conf.find_problems(conf.raw_settings()), None) is not None


def _error(id: str, message: str, hint: str = "") -> checks.Error:
    return checks.Error(message, hint=hint or None, id=id)


def register() -> None:
    """Make Django run these checks; once is enough, more do no harm."""
    settings_checks: tuple[Callable[..., list[checks.CheckMessage]], ...] = (
        check_settings,
        check_queues,
        check_schedules,
        check_vendor,
    )
    for check in settings_checks:
        checks.register(check, "jobqueue")
    checks.register(check_databases, "jobqueue", checks.Tags.database)


register()
