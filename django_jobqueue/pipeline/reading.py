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

from .. import redaction
from ..conf import get_settings
from ..engine.databases import database
from ..exceptions import InvalidOption
from ..options import check_moment, check_state
from ..redaction import StoredText
from ..services.send_many import staged_commit
from ..text import check_queue_name
from . import datasource
from .datasource import COLUMNS, FORMAT, LIGHT, JobDataSource

for module in (datasource, redaction):  # executors do not need this package
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

_KEYWORDS = frozenset(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A snapshot of the job table, valid as long as the transaction that exported it is open."""

    id: str
    using: str


@contextmanager
def job_snapshot(*, using: str | None = None) -> Iterator[JobSnapshot]:
    """Let ``read_jobs(spark, snapshot=…)`` inside this context see the jobs as they are now.

    Keep the context short: as long as it is open, PostgreSQL keeps all old versions of rows that change.
    """
    using = database(using)
    with kept_open(using, psycopg.IsolationLevel.REPEATABLE_READ) as connection:
        ((id,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        yield JobSnapshot(id, using)


@contextmanager
def kept_open(using: str, isolation: psycopg.IsolationLevel) -> Iterator[psycopg.Connection[Any]]:
    """A transaction on its own connection, which no timeout for idle transactions and no pooler ends."""
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

    The filters run in PostgreSQL; a later ``where()`` runs in Spark. Without a ``snapshot``, each task reads its part
    as it is when the task runs. Raises ``InvalidOption`` for a column or a state that does not exist.
    """
    moments = {
        "created_after": created_after,
        "created_before": created_before,
        "finalized_after": finalized_after,
        "finalized_before": finalized_before,
    }
    options = {
        "columns": _as_json(_check_column(column) for column in columns),
        "queue": _as_json(check_queue_name(each) for each in _as_list(queue)),
        "state": _as_json(check_state(each) for each in _as_list(state)),
        "policy": _as_json(_as_list(policy)),
        "name": _as_json(_as_list(name)),
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
    hidden: StoredText | None = None,
    rest: float = 0.0,
) -> DataFrame:
    """Read the format with these options from a database of the project; ``condition`` is trusted SQL.

    ``hidden`` hides sensitive values. Tasks pause ``rest`` seconds for each second of work, to leave the machine and
    the server to other processes.
    """
    number = partitions or 2 * spark.sparkContext.defaultParallelism
    reader = spark.read.format(bound(spark, using, condition, hidden, rest)).option("partitions", number)
    return reader.options(**{name: value for name, value in options.items() if value}).load()


def register(spark: SparkSession) -> None:
    """Register ``format("jobqueue")`` in this session, for reading and writing."""
    body = {"commit": staged_commit(), "max_bytes": get_settings().MAX_DATA_BYTES}
    try:
        spark.dataSource.register(type("RegisteredJobDataSource", (JobDataSource,), body))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # another session of this process registered it
            raise


def bound(
    spark: SparkSession, using: str, condition: str = "", hidden: StoredText | None = None, rest: float = 0.0
) -> str:
    """Register the format bound to a connection, and return its name: plans and Spark's pages show no password.

    The name is new each time, because a session refuses a name that another session has registered.
    """
    name = f"{FORMAT}_{using}_{uuid4().hex[:8]}"
    body = {
        "conninfo": conninfo_of(using),
        "condition": condition,
        "hidden": hidden,
        "rest": rest,
        "commit": staged_commit(),
        "max_bytes": get_settings().MAX_DATA_BYTES,
        "name": classmethod(lambda cls: name),
    }
    spark.dataSource.register(type("BoundJobDataSource", (JobDataSource,), body))
    return name


def conninfo_of(using: str) -> str:
    """The connection string of a database of the project, for other machines.

    It contains what libpq read from its environment, a service file or a password file, because executors have none of
    these.
    """
    wrapper = connections[using]
    wrapper.ensure_connection()
    params = wrapper.get_connection_params()
    parts = {name: value for name, value in params.items() if name in _KEYWORDS and value not in (None, "")}
    info = wrapper.connection.info
    used = {"host": info.host, "port": info.port, "user": info.user, "dbname": info.dbname, "password": info.password}
    parts |= {name: value for name, value in used.items() if value}
    if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
        parts["options"] = f"{parts.get('options', '')} -c role={role}".strip()
    return make_conninfo(**{**parts, "application_name": "django_jobqueue pipeline"})


def _as_list(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _as_json(values: Iterable[str]) -> str:
    listed = list(values)
    return json.dumps(listed) if listed else ""


def _check_column(name: str) -> str:
    if name not in COLUMNS:
        raise InvalidOption("columns", f"jobs have no column {name!r}", hint=f"They have {', '.join(COLUMNS)}.")
    return name
