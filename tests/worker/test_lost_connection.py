"""Whether a handler failed because it lost a connection to a database: then the job is not to blame."""

from __future__ import annotations

import time

import django.db
import psycopg
import pytest
from psycopg import errors

from django_jobqueue.handlers import Handler
from django_jobqueue.models import Job
from django_jobqueue.worker.outcomes import Failed, ending_for_error, lost_connection

GONE = (
    psycopg.OperationalError("the connection is lost"),
    psycopg.InterfaceError("the connection is closed"),
    errors.ConnectionFailure(),
    errors.AdminShutdown(),
    errors.CrashShutdown(),
    errors.CannotConnectNow(),
    errors.ReadOnlySqlTransaction(),
)
THERE = (
    errors.QueryCanceled(),
    errors.LockNotAvailable(),
    errors.DeadlockDetected(),
    errors.InFailedSqlTransaction(),
    errors.UniqueViolation(),
    ValueError("no"),
)


def named(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", GONE, ids=named)
def test_a_server_that_is_gone_ends_the_connection(error):
    assert lost_connection(error)


@pytest.mark.parametrize("error", THERE, ids=named)
def test_what_a_server_refuses_does_not_end_the_connection(error):
    assert not lost_connection(error)


@pytest.mark.parametrize("explicit", (True, False), ids=["cause", "context"])
def test_the_error_behind_an_error_counts(explicit):
    error = django.db.OperationalError("gone")
    setattr(error, "__cause__" if explicit else "__context__", errors.AdminShutdown())

    assert lost_connection(error)
    assert not lost_connection(django.db.OperationalError("gone"))


def test_errors_that_name_each_other_are_looked_at_once():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert not lost_connection(first)


def test_a_failure_says_when_the_connection_was_lost():
    handler: Handler[[], None, object] = Handler(lambda: None, queue="work", name="work")
    began = time.monotonic()

    ending = ending_for_error(handler, Job(), errors.AdminShutdown())

    assert isinstance(ending, Failed)
    assert ending.disconnected_at is not None
    assert began <= ending.disconnected_at <= time.monotonic()
    other = ending_for_error(handler, Job(), ValueError("no"))
    assert isinstance(other, Failed)
    assert other.disconnected_at is None
