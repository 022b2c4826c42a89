"""Running work in the caller's transaction, or in a transaction of its own that can be run again.

Several statements can go in one message, and frequent ones are prepared: a prepared statement is planned once per
connection, and planning it each time took as long as running it.

Statements are prepared only in transactions of django_jobqueue's own, which can be run again. Behind a pooler each
transaction may use another server connection, which does not have the prepared statement. When that happens, the
statements of that database are sent in full from then on.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.conf import settings
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors

from ..conf import get_settings
from ..database_errors import explain
from ..log_texts import error_line, error_text
from ..process_memory import ProcessMemory
from .databases import Rows, execute, rows
from .prepared_statements import prepared
from .sql.parts import CLAIM_COLUMNS, CLAIMED, LEAF
from .sql.session import BEGIN, BEGIN_AT_ONCE, MAKE_DURABLE, PLAN_OFF, PLAN_ON, SET_LOCK_TIMEOUT, SWAP_LOCK_TIMEOUT

logger = logging.getLogger("django_jobqueue")

T = TypeVar("T")
Statement = tuple[str, Mapping[str, Any]]  # in one message, parameters of the same name have the same value

TRIES = 10
READ_COMMITTED = "read committed"
AFTER = 5  # a statement is prepared once a connection has run it this often
MOST = 200  # statements counted for one connection


def joins(connection: BaseDatabaseWrapper) -> bool:
    """Whether the caller has an open transaction, of which new statements become part."""
    try:
        return not connection.get_autocommit()  # connects, if that has not been done yet
    except OperationalError as error:
        explain(error, connection.alias)
        raise


def is_conflict(error: BaseException) -> bool:
    return isinstance(error.__cause__, errors.DeadlockDetected | errors.SerializationFailure)


def again_after_conflict(using: str, work: Callable[[], T]) -> T:
    """Run ``work``, which owns its transaction; once more after a deadlock or a serialization failure."""
    for tries_left in reversed(range(TRIES)):
        try:
            return work()
        except DatabaseError as error:
            if not tries_left or not (is_conflict(error) or names.is_forgotten(error, using)):
                explain(error, using)
                raise
            logger.debug(
                "transaction conflict: %s; trying again, tries left: %d",
                error_line(error),
                tries_left,
                extra={"tries_left": tries_left, "error": error_text(error)},
            )
        time.sleep(random.uniform(0.001, 0.02))
    raise AssertionError("unreachable")


def in_transaction(using: str, work: Callable[..., T], first: Sequence[Statement] = ()) -> T:
    """Run ``work`` in the caller's transaction, or in a READ COMMITTED transaction of its own.

    ``work`` gets the rows of each of the ``first`` statements, which need no separate round trip.

    The transaction must be READ COMMITTED whatever the project's default, because lanes are judged by a new statement
    after a lock was taken. In a stricter transaction a new statement would not see what was committed since.
    """
    if joins(connections[using]):
        try:
            with planned(using):
                return work(*rows_of_each(using, first))
        except DatabaseError as error:
            explain(error, using)
            raise

    def own() -> T:
        with transaction.atomic(using=using):
            before = own_transactions.open
            own_transactions.open = {**before, using: can_go_together(using) and names.can_name(using)}
            try:
                return work(*_begin_with(using, first))
            finally:
                own_transactions.open = before

    return again_after_conflict(using, own)


def at_once(using: str, statements: Sequence[Statement]) -> list[Rows]:
    """Run statements in one round trip, as their own transaction or as part of the caller's; return their rows."""
    if joins(connections[using]) or not can_go_together(using):
        return in_transaction(using, lambda *results: list(results), statements)
    return again_after_conflict(using, partial(_begin_with, using, statements))  # one message is one transaction


def row_at_once(using: str, sql: str, params: Any) -> tuple[Any, ...] | None:
    """Run one statement, as its own transaction or as part of the caller's; return its first row."""
    if joins(connections[using]):
        try:
            result = rows_of(using, sql, params)
        except DatabaseError as error:
            explain(error, using)
            raise
    else:
        result = again_after_conflict(using, partial(_rows_alone, using, sql, params))
    return result[0] if result else None


@contextmanager
def planned(using: str) -> Iterator[None]:
    """In a caller's transaction: set the planner settings for the statements inside, and restore the caller's after.

    Inside another such block, or inside a transaction of our own, they are set already.
    """
    if using in plans.set_for or using in own_transactions.open:
        yield
        return
    before, outer = rows(using, PLAN_ON)[0][::2], plans.set_for
    plans.set_for = outer | {using}
    try:
        yield
    finally:
        plans.set_for = outer
        if _is_usable(using):
            execute(using, PLAN_OFF, before)


class Plans(threading.local):
    """The databases for whose statements this thread has set the planner settings."""

    set_for: frozenset[str] = frozenset()


plans = Plans()


def _is_usable(using: str) -> bool:
    """Whether settings can be changed: not in a failed transaction, whose rollback restores the settings."""
    connection = connections[using].connection
    return connection is not None and connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def is_strict(using: str) -> bool:
    """Whether this is a caller's transaction that is stricter than READ COMMITTED, so that it cannot judge lanes."""
    if connections[using].get_autocommit() or using in own_transactions.open:  # own transactions are READ COMMITTED
        return False
    return bool(rows(using, "SHOW transaction_isolation")[0][0] != READ_COMMITTED)


def make_durable(using: str) -> None:
    """Make the commit of a caller's transaction durable, because it contains claims or results of jobs."""
    if joins(connections[using]):
        execute(using, MAKE_DURABLE)


@contextmanager
def patient(using: str, seconds: float | None = None) -> Iterator[None]:
    """Wait for locks at most this long (default: ``LOCK_TIMEOUT_MS``) inside; restore the caller's limit after."""
    before = rows(using, SWAP_LOCK_TIMEOUT, [_limit(seconds)])[0][0]
    try:
        yield
    finally:
        if _is_usable(using):
            rows(using, SWAP_LOCK_TIMEOUT, [before])


def _limit(seconds: float | None) -> str:
    milliseconds = get_settings().LOCK_TIMEOUT_MS if seconds is None else int(seconds * 1000)
    return f"{milliseconds}ms"


def unless_locked(using: str, work: Callable[[], T], seconds: float | None = None) -> T | None:
    """Run ``work``, and return its result; ``None`` if it waited too long for a lock. Breaks no outer transaction."""
    if connections[using].get_autocommit():  # the limit ends with the transaction
        limit = (SET_LOCK_TIMEOUT, {"limit": _limit(seconds)})
        return none_if_locked(partial(in_transaction, using, lambda _: work(), [limit]))

    def guarded() -> T:
        with transaction.atomic(using=using), planned(using), patient(using, seconds):
            return work()

    return none_if_locked(guarded)


def none_if_locked(work: Callable[[], T]) -> T | None:
    """Run ``work``, which sets its own lock timeout, and return its result; ``None`` if it waited too long."""
    try:
        return work()
    except OperationalError as error:
        if not isinstance(error.__cause__, errors.LockNotAvailable):
            raise
        return None


# -------------------------------------------------------------------------------------------------- statements


class OwnTransactions(threading.local):
    """This thread's transactions that are not the caller's, by database: whether each may use prepared statements."""

    open: Mapping[str, bool] = MappingProxyType({})


own_transactions = OwnTransactions()


def can_go_together(using: str) -> bool:
    """Whether a message can hold several statements: it cannot if the server binds their parameters."""
    connection = connections[using]
    connection.ensure_connection()
    return issubclass(connection.connection.cursor_factory, psycopg.ClientCursor)


def _begin_with(using: str, first: Sequence[Statement]) -> list[Rows]:
    """Set up the transaction that begins now, and return the rows of its first statements."""
    if not first or not can_go_together(using):
        with connections[using].cursor() as cursor:
            cursor.execute(BEGIN)
        return [rows_of(using, sql, params) for sql, params in first]
    start: Sequence[str] = BEGIN_AT_ONCE
    if names.can_name(using):
        if names.is_due(using, first) and not connections[using].get_autocommit():
            execute(using, BEGIN)  # which must come before anything else
            start = ()
        first = names.by_name(using, first)
    return _send(using, start, first)


def rows_of(using: str, sql: str, params: Any, *, by_name: bool = False) -> Rows:
    """Like :func:`rows`, also for a statement that returns no rows, and with times loaded quickly.

    With ``by_name`` the statement may be prepared: it is then planned once, for any values. Do not use this for a
    statement that has a state or a policy as a parameter, because its plan cannot use the indexes of some states.
    """
    if by_name and own_transactions.open.get(using):
        [(sql, params)] = names.by_name(using, [(sql, params)])
    with connections[using].cursor() as cursor:
        _load_times_quickly(cursor)
        cursor.execute(sql, params)
        return _fetched(cursor)


def rows_of_each(using: str, statements: Sequence[Statement], *, by_name: bool = False) -> list[Rows]:
    """Like :func:`rows_of` for several statements, which go in one message.

    Each has a snapshot of its own: in a READ COMMITTED transaction it sees what was committed before it began. In the
    caller's transaction they go one by one, because the project's wrappers of statements may expect that.
    """
    if not statements or using not in own_transactions.open or not can_go_together(using):
        return [rows_of(using, sql, params) for sql, params in statements]
    if by_name and own_transactions.open[using]:
        statements = names.by_name(using, statements)
    return _send(using, (), statements)


def _rows_alone(using: str, sql: str, params: Any) -> Rows:
    """The rows of a statement that is its own transaction; it can be run again, so it may be prepared."""
    if can_go_together(using) and names.can_name(using):
        [(sql, params)] = names.by_name(using, [(sql, params)])
    return rows_of(using, sql, params)


def _send(using: str, start: Sequence[str], statements: Sequence[Statement]) -> list[Rows]:
    """Send one message, and return the rows of its statements, without those of its ``start``."""
    params = {name: value for _, params in statements for name, value in params.items()}
    with connections[using].cursor() as cursor:
        _load_times_quickly(cursor)
        cursor.execute("; ".join([*start, *(sql for sql, _ in statements)]), params)
        for _ in start:
            cursor.nextset()
        results = [_fetched(cursor)]
        for _ in statements[1:]:
            cursor.nextset()
            results.append(_fetched(cursor))
        return results


def _fetched(cursor: Any) -> Rows:
    """All rows of a statement, if it returns any; reading ``description`` would make an object for each column."""
    return list(cursor.fetchall()) if cursor.cursor.pgresult.nfields else []


@lru_cache(maxsize=2048)
def at(leaf: str, statement: str, claimed: tuple[str, ...] = CLAIMED) -> str:
    """The statement for one part of the job table, with these columns of the claimed jobs.

    It must name the part, because rows are found again by ctid, which is unique only within a part. And statistics
    about the queues and states of the job table are never up to date: with a statement on the whole table, a planner
    that expected the queue to be empty read the whole table for each batch.
    """
    columns = ", ".join(f"j.{name}" for name in claimed)
    return statement.replace(LEAF, leaf).replace(CLAIM_COLUMNS, f"-j.priority, j.position, j.ctid, {columns}")


def text_array(values: Iterable[str]) -> str:
    """The text of a ``text[]``: psycopg takes ten times as long to write it, longer than the server takes to read."""
    escaped = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def _load_times_quickly(cursor: Any) -> None:
    """Load times with psycopg's own loader: Django's takes longer than the claim itself."""
    if settings.USE_TZ and _TIMES is not None:
        cursor.cursor.adapters.register_loader(_TIMESTAMPTZ, _TIMES)


_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_TIMES = psycopg.adapters.get_loader(_TIMESTAMPTZ, psycopg.pq.Format.TEXT)


# ------------------------------------------------------------------------------------------- prepared statements

_FORGOTTEN = (
    errors.InvalidSqlStatementName,  # it is another server connection
    errors.DuplicatePreparedStatement,  # another client of the pooler had this server connection before
    errors.FeatureNotSupported,  # a migration changed the type of a returned column
)


class NamedStatements(ProcessMemory):
    """What this process knows about prepared statements.

    It counts how often each connection ran each statement, as long as the connection is open. And it knows the
    databases that lose prepared statements, until the process ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uses: WeakKeyDictionary[psycopg.Connection[Any], dict[str, int]] = WeakKeyDictionary()
        self.forgetful: set[str] = set()  # databases behind a pooler that loses prepared statements

    def forget(self) -> None:
        self.forgetful.clear()  # the counts belong to connections, which still have their prepared statements

    def can_name(self, using: str) -> bool:
        """Whether statements may be prepared: not if ``JOBQUEUE`` or Django's settings say that there is a pooler."""
        if using in self.forgetful or get_settings().POOLER:
            return False
        return not connections[using].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")

    def is_due(self, using: str, statements: Sequence[Statement]) -> bool:
        """Whether :meth:`by_name` will prepare a statement."""
        uses = self.uses.get(connections[using].connection, {})
        return any(uses.get(sql) == AFTER for sql, _ in statements)

    def by_name(self, using: str, statements: Sequence[Statement]) -> list[Statement]:
        """The statements to send instead of these: those that were run often enough are prepared."""
        connection = connections[using].connection
        uses = self.uses.get(connection)
        if uses is None:
            uses = self.uses[connection] = {}
        sent = []
        for sql, params in statements:
            times = uses.get(sql, 0)
            if times == AFTER:
                with connections[using].cursor() as cursor:
                    cursor.execute(prepared(sql).prepare)
            if times <= AFTER and (times or len(uses) < MOST):
                uses[sql] = times + 1
            sent.append((prepared(sql).execute if times >= AFTER else sql, params))
        return sent

    def is_forgotten(self, error: DatabaseError, using: str) -> bool:
        """Whether a statement failed only because it was prepared; it is sent in full from now on."""
        if not isinstance(error.__cause__, _FORGOTTEN):
            return False
        if using not in self.forgetful:
            self.forgetful.add(using)
            logger.info(
                "prepared statements are not kept: database %s: %s; statements are sent in full from now on",
                using,
                error_line(error),
                extra={"database": using, "error": error_text(error)},
            )
        return True


names = NamedStatements()
