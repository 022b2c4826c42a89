"""Reading jobs from PostgreSQL into Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg
from django.db import connections
from psycopg.conninfo import make_conninfo
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ..conf import get_settings
from ..engine.databases import database
from ..exceptions import InvalidOption
from ..options import check_moment, check_state
from ..services.send_many import staged_commit
from ..text import check_queue_name
from . import datasource
from .datasource import COLUMNS, FORMAT, LIGHT, JobDataSource

cloudpickle.register_pickle_by_value(datasource)  # type: ignore[no-untyped-call] # executors need not have this package

_KEYWORDS = frozenset(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What the jobs were at one moment, for as long as the transaction that keeps it is open."""

    id: str
    using: str


@contextmanager
def job_snapshot(*, using: str | None = None) -> Iterator[JobSnapshot]:
    """Let all reads inside see the jobs as they are now: ``read_jobs(spark, snapshot=…)``.

    Keep it short: while it is open, PostgreSQL keeps every row that anybody deletes or changes.
    """
    using = database(using)
    with kept_open(using, psycopg.IsolationLevel.REPEATABLE_READ) as connection:
        ((id,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        yield JobSnapshot(id, using)


@contextmanager
def kept_open(using: str, isolation: psycopg.IsolationLevel) -> Iterator[psycopg.Connection[Any]]:
    """A transaction on a connection of its own, that no timeout of idle ones ends; a pooler leaves it alone too."""
    with connections[using].wrap_database_errors, psycopg.connect(conninfo_of(using)) as connection:
        connection.isolation_level = isolation
        connection.read_only = True
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection
        connection.rollback()


def read_jobs(
    spark: SparkSession,
    *,
    columns: Iterable[str] = LIGHT,
    queue: str | Iterable[str] = (),
    state: str | Iterable[str] = (),
    policy: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    finalized_after: datetime | None = None,
    finalized_before: datetime | None = None,
    snapshot: JobSnapshot | None = None,
    partitions: int | None = None,
    using: str | None = None,
) -> DataFrame:
    """The jobs of PostgreSQL as a DataFrame, without ``data`` and ``output`` unless ``columns`` names them.

    The filters work in PostgreSQL; whatever ``where()`` says later works in Spark. Without a ``snapshot`` each part is
    read as it is when its turn comes. Raises ``InvalidOption`` for what does not exist.
    """
    moments = {
        "created_after": created_after,
        "created_before": created_before,
        "finalized_after": finalized_after,
        "finalized_before": finalized_before,
    }
    options = {
        "columns": _listed(_check_column(one) for one in columns),
        "queue": _listed(check_queue_name(one) for one in _several(queue)),
        "state": _listed(check_state(one) for one in _several(state)),
        "policy": _listed(_several(policy)),
        "name": _listed(_several(name)),
        **{option: check_moment(moment).isoformat() for option, moment in moments.items() if moment is not None},
    }
    if snapshot is not None:
        options["snapshot"] = snapshot.id
    using = database(using if snapshot is None else snapshot.using)
    return load(spark, options, using=using, partitions=partitions)


def load(
    spark: SparkSession,
    options: dict[str, str],
    *,
    using: str,
    partitions: int | None = None,
    condition: str = "",
    rest: float = 0.0,
) -> DataFrame:
    """The format with these options, bound to a database of the project; ``condition`` is SQL of ours.

    Tasks ``rest`` that many seconds for each second of work, to leave the machine and the server to others.
    """
    number = partitions or 2 * spark.sparkContext.defaultParallelism
    reader = spark.read.format(bound(spark, using, condition, rest)).option("partitions", number)
    return reader.options(**{name: value for name, value in options.items() if value}).load()


def register(spark: SparkSession) -> None:
    """Let ``format("jobqueue")`` work in this session, to read and to write."""
    body = {"commit": staged_commit(), "max_bytes": get_settings().MAX_DATA_BYTES}
    try:
        spark.dataSource.register(type("RegisteredJobDataSource", (JobDataSource,), body))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # by another session of this process
            raise


def bound(spark: SparkSession, using: str, condition: str = "", rest: float = 0.0) -> str:
    """Register the format with the connection inside, and return its name: no plan and no page shows what it holds.

    Its name is new each time, because a session refuses a name that another one has registered.
    """
    name = f"{FORMAT}_{using}_{uuid4().hex[:8]}"
    body = {
        "conninfo": conninfo_of(using),
        "condition": condition,
        "rest": rest,
        "commit": staged_commit(),
        "max_bytes": get_settings().MAX_DATA_BYTES,
        "name": classmethod(lambda cls: name),
    }
    spark.dataSource.register(type("BoundJobDataSource", (JobDataSource,), body))
    return name


def conninfo_of(using: str) -> str:
    """How to reach a database of the project from elsewhere.

    What libpq found in its environment, a service file or a password file is written out, because an executor has
    none of these.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    given = wrapper.get_connection_params()
    parts = {name: value for name, value in given.items() if name in _KEYWORDS and value not in (None, "")}
    info = wrapper.connection.info
    found = {"host": info.host, "port": info.port, "user": info.user, "dbname": info.dbname, "password": info.password}
    parts |= {name: value for name, value in found.items() if value}
    if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
        parts["options"] = f"{parts.get('options', '')} -c role={role}".strip()
    return make_conninfo(**parts, application_name="django_jobqueue pipeline")


def _several(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _listed(values: Iterable[str]) -> str:
    found = list(values)
    return json.dumps(found) if found else ""


def _check_column(name: str) -> str:
    if name not in COLUMNS:
        raise InvalidOption("columns", f"jobs have no column {name!r}", hint=f"They have {', '.join(COLUMNS)}.")
    return name
