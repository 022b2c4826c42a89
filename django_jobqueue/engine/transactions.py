"""Running work in the caller's transaction, or in a transaction of its own that can be run again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import psycopg
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors

from ..conf import get_settings
from ..log_texts import error_line
from .databases import (
    Rows,
    Statement,
    begin_with,
    can_go_together,
    claimed_rows,
    execute,
    names,
    own_transactions,
    rows,
    rows_alone,
)
from .sql.session import MAKE_DURABLE, PLAN_OFF, PLAN_ON, SET_LOCK_TIMEOUT, SWAP_LOCK_TIMEOUT

logger = logging.getLogger("django_jobqueue")

T = TypeVar("T")
TRIES = 10
READ_COMMITTED = "read committed"


def joins(connection: BaseDatabaseWrapper) -> bool:
    """Whether the caller has an open transaction, of which new statements become part."""
    return not connection.get_autocommit()


def is_conflict(error: BaseException) -> bool:
    return isinstance(error.__cause__, errors.DeadlockDetected | errors.SerializationFailure)


def again_after_conflict(using: str, work: Callable[[], T]) -> T:
    """Run ``work``, which owns its transaction; once more after a deadlock or a serialization failure."""
    for tries_left in reversed(range(TRIES)):
        try:
            return work()
        except DatabaseError as error:
            if not tries_left or not (is_conflict(error) or names.is_forgotten(error, using)):
                raise
            logger.debug(
                "transaction conflict: %s; trying again, tries left: %d",
                error_line(error),
                tries_left,
                extra={"tries_left": tries_left, "error": str(error).strip()},
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
        with planned(using):
            return work(*[claimed_rows(using, sql, params) for sql, params in first])

    def own() -> T:
        with transaction.atomic(using=using):
            before = own_transactions.open
            own_transactions.open = {**before, using: can_go_together(using) and names.can_name(using)}
            try:
                return work(*begin_with(using, first))
            finally:
                own_transactions.open = before

    return again_after_conflict(using, own)


def at_once(using: str, given: Sequence[Statement]) -> list[Rows]:
    """Run statements in one round trip, as their own transaction or as part of the caller's; return their rows."""
    if joins(connections[using]) or not can_go_together(using):
        return in_transaction(using, lambda *found: list(found), given)
    return again_after_conflict(using, partial(begin_with, using, given))  # one message is one transaction


def row_at_once(using: str, sql: str, params: Any) -> tuple[Any, ...] | None:
    """Run one statement, as its own transaction or as part of the caller's; return its first row."""
    if connections[using].get_autocommit():
        found = again_after_conflict(using, partial(rows_alone, using, sql, params))
    else:
        found = claimed_rows(using, sql, params)
    return found[0] if found else None


@contextmanager
def planned(using: str) -> Iterator[None]:
    """In a caller's transaction: set the planner settings for the statements inside, and restore the caller's after."""
    before = rows(using, PLAN_ON)[0][::2]
    try:
        yield
    finally:
        if _is_usable(using):
            execute(using, PLAN_OFF, before)


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
    own = connections[using].get_autocommit()

    def bounded() -> T:
        if own:  # the limit ends with the transaction
            execute(using, SET_LOCK_TIMEOUT, [_limit(seconds)])
            return work()
        with patient(using, seconds):
            return work()

    def guarded() -> T:
        with nullcontext() if own else transaction.atomic(using=using):
            return in_transaction(using, bounded)

    return none_if_locked(guarded)


def none_if_locked(work: Callable[[], T]) -> T | None:
    """Run ``work``, which sets its own lock timeout, and return its result; ``None`` if it waited too long."""
    try:
        return work()
    except OperationalError as error:
        if not isinstance(error.__cause__, errors.LockNotAvailable):
            raise
        return None
