"""Creating, changing and deleting queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.models import Model
from psycopg import errors
from psycopg.sql import Literal

from ..conf import get_settings, task_queues
from ..engine import sql
from ..engine.announcements import after_commit
from ..engine.databases import database, execute, named, rows
from ..engine.lanes import release_held
from ..engine.queues import check_exists, no_queue
from ..engine.records import changes, keep_record, noted
from ..engine.transactions import T, in_transaction, joins
from ..exceptions import ImmutableOption, InvalidOption, JobQueueError
from ..expressions import StatementTimestamp
from ..models import Queue
from ..options import QUEUE_OPTIONS, clean_queue_options, queue_defaults
from ..partitions import create_partition_sql, partition_name
from ..policies import ORDERED, QueuePolicy
from ..text import check_queue_name

FIXED = ("policy", "partition")
RETRY_OPTIONS = ("retry_limit", "retry_delay", "retry_backoff", "retry_delay_max")
PARTITION_TRIES = 20


def create_queue(name: str, *, operator: str = "", reason: str = "", using: str | None = None, **options: Any) -> Queue:
    """Create a queue; if a queue of this name exists, change its options instead.

    Options that are not given keep their values, or get their defaults in a new queue. With an ``operator`` or a
    ``reason`` the call is recorded as an ``Operation``. Raises ``InvalidOption``, and ``ImmutableOption`` for another
    policy or partition than the existing queue has.
    """
    using, note = database(using), noted(operator, reason)
    name = check_queue_name(name)
    wanted = clean_queue_options(options, name=name)
    existing = Queue.objects.using(using).filter(pk=name).first()
    if existing is not None:
        return update_queue(name, operator=operator, reason=reason, using=using, **wanted)
    queue = _create_new(name, wanted, using)
    keep_record("create_queue", note, using, queue=name, details=changes({}, wanted))
    return queue


def _create_new(name: str, wanted: dict[str, Any], using: str, *, in_migration: bool = False) -> Queue:
    values = queue_defaults() | wanted
    if values["dead_letter"] == name:  # the default dead-letter queue has no dead-letter queue itself
        values["dead_letter"] = None
    if values["partition"]:
        if not in_migration:  # the migration's own transaction has just created the job table
            _outside_atomic(using, f"create_queue({name!r}, partition=True)")
        return _with_lock_timeout(using, partial(_create, name, values, wanted, using))
    with transaction.atomic(using=using):
        return _create(name, values, wanted, using)


def _create(name: str, values: Mapping[str, Any], wanted: Mapping[str, Any], using: str) -> Queue:
    """Create the queue and its partition together: a job sent in between would lie in the common part and be lost."""
    _check_dead_letter(name, wanted, using)
    if values["partition"]:
        _create_partition(name, using)
    queue, created = Queue.objects.using(using).get_or_create(name=name, defaults=_columns(values))
    return queue if created else _change(queue, wanted, using)


def create_fifo_queue(name: str, *, using: str | None = None, **options: Any) -> Queue:
    """Create a queue whose jobs run in strict order per ``singleton_key``.

    Raises ``InvalidOption``, also for retry options, because on an ordered queue they belong to each job, and
    ``ImmutableOption`` if a queue of this name has another policy or partition.
    """
    for option in (*RETRY_OPTIONS, "policy"):
        if option in options:
            raise InvalidOption(option, "create_fifo_queue() does not take it", hint="Give it to send().")
    return create_queue(name, using=using, policy=ORDERED, **options)


def update_queue(name: str, *, operator: str = "", reason: str = "", using: str | None = None, **options: Any) -> Queue:
    """Change options of a queue; jobs that were already sent keep their options.

    With an ``operator`` or a ``reason`` the change is recorded as an ``Operation``, with the values before and after.
    Raises ``QueueNotFound``, ``InvalidOption``, and ``ImmutableOption`` for another policy or partition.
    """
    using, name = database(using), named(name)
    note = noted(operator, reason)
    wanted = clean_queue_options(options, name=name)
    with transaction.atomic(using=using):
        before = get_queue(name, using=using)
        _check_dead_letter(name, wanted, using)
        after = _change(before, wanted, using)
        changed = changes(_values(before, wanted), _values(after, wanted))
        if changed:
            keep_record("update_queue", note, using, queue=name, details=changed)
        return after


def _values(queue: Queue, options: Iterable[str]) -> dict[str, Any]:
    return {name: queue.dead_letter_id if name == "dead_letter" else getattr(queue, name) for name in options}


def delete_queue(name: str, *, operator: str = "", reason: str = "", using: str | None = None) -> bool:
    """Delete a queue, all its jobs, and the schedules that send to it; return whether the queue existed.

    With an ``operator`` or a ``reason`` the call is recorded as an ``Operation``. Raises ``InvalidOption`` if the queue
    has its own partition and the call is inside ``atomic()``.
    """
    using, name = database(using), named(name)
    note = noted(operator, reason)
    queue = Queue.objects.using(using).filter(pk=name).first()
    if queue is None:
        return False
    if queue.partition:
        _outside_atomic(using, f"delete_queue({name!r})")
        _with_lock_timeout(using, partial(_drop, queue, using))
    else:
        queue.delete(using=using)
    keep_record("delete_queue", note, using, queue=name)
    return True


def _drop(queue: Queue, using: str) -> None:
    table = partition_name(queue.name)
    if rows(using, sql.queues.TABLE_EXISTS, [table])[0][0] is not None:
        execute(using, sql.queues.DROP_PARTITION.format(table=table))
    queue.delete(using=using)


def get_queue(name: str, *, using: str | None = None) -> Queue:
    """Return the queue of this name, with the number of its jobs per state. Raises ``QueueNotFound``."""
    using, name = database(using), named(name)
    queue = Queue.objects.using(using).with_counts().filter(pk=name).first()
    if queue is None:
        raise no_queue(name, using)
    return queue


def find_queue(queue: object, using: str) -> Queue:
    """Return the queue, given by its name or as a ``Queue``, without counting its jobs. Raises ``QueueNotFound``."""
    return check_exists(queue, using)


def queue_name(queue: object) -> str:
    """Return the name of a queue, which need not exist. Raises ``InvalidOption`` for what cannot be a queue's name."""
    return named(queue)


def queue_names(*, using: str) -> set[str]:
    """Return the names of all queues."""
    return set(Queue.objects.using(using).values_list("name", flat=True))


def sync_declared(*, using: str) -> None:
    """Create or change the queues that the settings declare, so that they are as declared, and ``default``."""
    if not has_table(Queue, using):
        return
    for name, declared in _declared():
        options = dict(declared)
        if Queue.objects.using(using).filter(pk=name).exists():
            options = {key: value for key, value in options.items() if key not in FIXED}
        create_queue(name, using=using, **options)
    Queue.objects.using(using).update(from_code=False)
    Queue.objects.using(using).filter(name__in=get_settings().QUEUES).update(from_code=True)


def create_declared(*, using: str, in_migration: bool = False) -> None:
    """Create the declared queues that are missing, so that data migrations can send to them.

    Existing queues are changed only by :func:`sync_declared`, after all migrations; it also reports a declaration that
    is refused here.
    """
    if not has_table(Queue, using):
        return
    existing = queue_names(using=using)
    for name, options in _declared():
        if name not in existing:
            with suppress(JobQueueError):
                _create_new(check_queue_name(name), clean_queue_options(options, name=name), using,
                            in_migration=in_migration)  # fmt: skip


def has_table(model: type[Model], using: str) -> bool:
    """Whether the database has the table of this model, with all its columns: a migration may have yet to add one."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return False
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return False
        stored = {column.name for column in connection.introspection.get_table_description(cursor, table)}
    return stored >= {field.column for field in model._meta.local_concrete_fields}


def _declared() -> list[tuple[str, Mapping[str, Any]]]:
    """The queues that must exist, with their options; dead-letter queues before those that refer to them."""
    declared: Mapping[str, Mapping[str, Any]] = {
        "default": {},
        **{name: {} for name in task_queues()},
        **get_settings().QUEUES,
    }
    return [(name, declared[name]) for name in sorted(declared, key=lambda name: _depth(name, declared))]


def _depth(name: str, declared: Mapping[str, Mapping[str, Any]]) -> int:
    """The number of queues behind this one in the chain of dead-letter queues, so that those are created first."""
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
    if "delayed_head" in values:  # the job that goes first may have changed in every lane
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
    """Refuse the call inside a caller's transaction: it would lock the whole job table until the caller's commit."""
    if joins(connections[using]) and not _may_join(using):
        raise InvalidOption("partition", f"{what} cannot be called inside atomic()")


def _may_join(using: str) -> bool:
    """Whether it is the transaction of a test: it never commits, and no other transaction waits for it."""
    return any(getattr(block, "_from_testcase", False) for block in connections[using].atomic_blocks)


def _with_lock_timeout(using: str, work: Callable[[], T]) -> T:
    """Run ``work`` with a short lock timeout, several times if it must.

    Creating and dropping a partition wait for every running statement on the job table, and all new statements wait
    behind them. So each try waits only for a moment.
    """
    limit = get_settings().LOCK_TIMEOUT_MS

    def bounded() -> T:
        execute(using, sql.session.SET_LOCK_TIMEOUT, {"limit": f"{min(limit, 500)}ms"})
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
    # CREATE would fail if the default partition had rows of this queue; there are none, because the queue is new.
    execute(using, create_partition_sql(literal, table).replace("%", "%%"))
