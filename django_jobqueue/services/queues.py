"""Making, changing and removing queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.db import OperationalError, ProgrammingError, connections, transaction
from psycopg import errors
from psycopg.sql import Literal

from ..conf import get_settings, task_queues
from ..engine import sql
from ..engine.announcements import after_commit
from ..engine.databases import database, execute, explain_missing_tables, rows
from ..engine.lanes import release_held
from ..engine.queues import check_exists, named, no_queue
from ..engine.transactions import T, in_transaction, joins
from ..exceptions import ImmutableOption, InvalidOption
from ..expressions import StatementTimestamp
from ..models import Queue
from ..options import QUEUE_OPTIONS, clean_queue_options, queue_defaults
from ..partitions import create_partition_sql, partition_name
from ..policies import ORDERED, QueuePolicy
from ..text import check_queue_name

FIXED = ("policy", "partition")
RETRY_OPTIONS = ("retry_limit", "retry_delay", "retry_backoff", "retry_delay_max")
PARTITION_TRIES = 20


def create_queue(name: str, *, using: str | None = None, **options: Any) -> Queue:
    """Create a queue, or change what may be changed of an existing one of that name.

    Raises ``InvalidOption`` and, for another policy or partition than it has, ``ImmutableOption``.
    """
    using = database(using)
    name = check_queue_name(name)
    wanted = clean_queue_options(options, name=name)
    existing = Queue.objects.using(using).filter(pk=name).first()
    if existing is not None:
        return update_queue(name, using=using, **wanted)
    values = queue_defaults() | wanted
    if values["dead_letter"] == name:  # the default dead letter has none itself
        values["dead_letter"] = None
    if values["partition"]:
        _outside_atomic(using, f"create_queue({name!r}, partition=True)")
        return _with_lock_timeout(using, partial(_create, name, values, wanted, using))
    with transaction.atomic(using=using):
        return _create(name, values, wanted, using)


def _create(name: str, values: Mapping[str, Any], wanted: Mapping[str, Any], using: str) -> Queue:
    """The queue and its part of the table at once: a job sent in between would lie in the common part and be lost."""
    _check_dead_letter(name, wanted, using)
    if values["partition"]:
        _create_partition(name, using)
    queue, created = Queue.objects.using(using).get_or_create(name=name, defaults=_columns(values))
    return queue if created else _change(queue, wanted, using)


def create_fifo_queue(name: str, *, using: str | None = None, **options: Any) -> Queue:
    """Create a queue whose jobs run in strict order per ``singleton_key``.

    It takes no retry options, because on such a queue they belong to each job; ``InvalidOption`` says so.
    """
    for option in (*RETRY_OPTIONS, "policy"):
        if option in options:
            raise InvalidOption(option, "create_fifo_queue() does not take it", hint="Give it to send().")
    return create_queue(name, using=using, policy=ORDERED, **options)


def update_queue(name: str, *, using: str | None = None, **options: Any) -> Queue:
    """Change a queue's options; jobs already sent keep theirs.

    Raises ``QueueNotFound``, ``InvalidOption`` and, for its policy or partition, ``ImmutableOption``.
    """
    using, name = database(using), named(name)
    wanted = clean_queue_options(options, name=name)
    with transaction.atomic(using=using):
        queue = get_queue(name, using=using)
        _check_dead_letter(name, wanted, using)
        return _change(queue, wanted, using)


def delete_queue(name: str, *, using: str | None = None) -> bool:
    """Delete a queue and all its jobs; whether there was one. Schedules that send to it go with it."""
    using, name = database(using), named(name)
    queue = Queue.objects.using(using).filter(pk=name).first()
    if queue is None:
        return False
    if queue.partition:
        _outside_atomic(using, f"delete_queue({name!r})")
        _with_lock_timeout(using, partial(_drop, queue, using))
    else:
        queue.delete(using=using)
    return True


def _drop(queue: Queue, using: str) -> None:
    table = partition_name(queue.name)
    if rows(using, sql.queues.TABLE_EXISTS, [table])[0][0] is not None:
        execute(using, sql.queues.DROP_PARTITION.format(table=table))
    queue.delete(using=using)


def get_queue(name: str, *, using: str | None = None) -> Queue:
    """The queue of that name with its number of jobs per state, counted now; or ``QueueNotFound``."""
    using, name = database(using), named(name)
    queue = Queue.objects.using(using).with_counts().filter(pk=name).first()
    if queue is None:
        raise no_queue(name, using)
    return queue


def find_queue(queue: object, using: str) -> Queue:
    """The queue that is meant, by its name or by itself, without counting its jobs; or ``QueueNotFound``."""
    return check_exists(queue, using)


def queue_name(queue: object) -> str:
    """The name of the queue that is meant, which may not exist; ``InvalidOption`` for what cannot be one."""
    return named(queue)


def queue_names(*, using: str) -> set[str]:
    """The names of all queues; ``ImproperlyConfigured`` if the tables are missing."""
    try:
        return set(Queue.objects.using(using).values_list("name", flat=True))
    except ProgrammingError as error:
        explain_missing_tables(error, using)
        raise


def sync_declared(*, using: str) -> None:
    """Make the queues that settings declare exist, as declared; ``default`` exists always."""
    if not _is_ours(using):
        return
    declared: Mapping[str, Mapping[str, Any]] = {
        "default": {},
        **{name: {} for name in task_queues()},
        **get_settings().QUEUES,
    }
    for name in sorted(declared, key=lambda name: _depth(name, declared)):
        options = dict(declared[name])
        if Queue.objects.using(using).filter(pk=name).exists():
            options = {key: value for key, value in options.items() if key not in FIXED}
        create_queue(name, using=using, **options)
    Queue.objects.using(using).update(from_code=False)
    Queue.objects.using(using).filter(name__in=get_settings().QUEUES).update(from_code=True)


def _is_ours(using: str) -> bool:
    connection = connections[using]
    return connection.vendor == "postgresql" and Queue._meta.db_table in connection.introspection.table_names()


def _depth(name: str, declared: Mapping[str, Mapping[str, Any]]) -> int:
    """Dead-letter queues first, so that each finds the one it names."""
    depth, seen = 0, set()
    while name not in seen:
        seen.add(name)
        name = str(declared.get(name, {}).get("dead_letter") or name)
        depth += 1
    return depth


def _columns(options: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: options[key] for key in QUEUE_OPTIONS if key in options}
    if "dead_letter" in values:
        values["dead_letter_id"] = values.pop("dead_letter")
    return values


def _change(queue: Queue, wanted: Mapping[str, Any], using: str) -> Queue:
    for option in FIXED:
        if option in wanted and wanted[option] != getattr(queue, option):
            raise ImmutableOption(queue.name, option, getattr(queue, option), wanted[option])
    values = _columns(wanted)
    values = {name: value for name, value in values.items() if getattr(queue, name) != value}
    if not values:
        return queue
    Queue.objects.using(using).filter(pk=queue.name).update(**values, updated_at=StatementTimestamp())
    if "delayed_head" in values:  # who goes first may have changed in every lane
        after_commit(using, partial(release_held, using, queue.name))
    return Queue.objects.using(using).get(pk=queue.name)


def _check_dead_letter(name: str, wanted: Mapping[str, Any], using: str) -> None:
    target = wanted.get("dead_letter")
    if target is None:
        return
    found = {queue.name: queue for queue in Queue.objects.using(using).exclude(name=name)}
    if target not in found:
        raise no_queue(target, using)
    if found[target].policy not in (QueuePolicy.STANDARD, ORDERED):
        raise InvalidOption(
            "dead_letter",
            f"{target!r} has the policy {found[target].policy!r}",
            hint="A dead-letter queue must be 'standard' or 'key_strict_fifo', because others refuse jobs.",
        )
    path = [name, target]
    while (following := found[path[-1]].dead_letter_id) is not None:
        path.append(following)
        if following == name:
            raise InvalidOption("dead_letter", f"goes in a circle: {' → '.join(path)}")
        if following not in found or path.count(following) > 1:
            return


# ------------------------------------------------------------------------------------------------ partitions


def _outside_atomic(using: str, what: str) -> None:
    """Refuse inside a caller's transaction: its lock on the whole job table would last until the caller's commit."""
    if joins(connections[using]) and not _may_join(using):
        raise InvalidOption("partition", f"{what} cannot be called inside atomic()")


def _may_join(using: str) -> bool:
    """The transaction that a test runs in never commits, and nobody else waits for it."""
    return any(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks)


def _with_lock_timeout(using: str, work: Callable[[], T]) -> T:
    """Creating and dropping wait for every running statement on the table, and all new ones wait behind: so only
    for a moment, and then again."""
    limit = get_settings().LOCK_TIMEOUT_MS

    def bounded() -> T:
        execute(using, sql.session.SET_LOCK_TIMEOUT, [f"{min(limit, 500)}ms"])
        return work()

    for tries_left in reversed(range(PARTITION_TRIES)):
        try:
            return in_transaction(using, bounded)
        except OperationalError as error:
            if not tries_left or not isinstance(error.__cause__, errors.LockNotAvailable):
                raise
        time.sleep(limit / 1000 / PARTITION_TRIES)
    raise AssertionError("unreachable")


def _create_partition(name: str, using: str) -> None:
    table = partition_name(name)
    with connections[using].cursor() as cursor:
        literal = Literal(name).as_string(cursor.connection)
    # Rows that lie in the default part would make CREATE fail; there are none for a queue that did not exist.
    execute(using, create_partition_sql(literal, table).replace("%", "%%"))
