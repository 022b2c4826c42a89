"""Send many jobs from a DataFrame: all or none, in order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..engine.databases import database
from ..exceptions import InvalidOption, KeyRequired
from ..services.queues import find_queue
from ..text import check_text
from .datasource import WRITTEN
from .reading import bound
from .session import activate

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_MOMENTS = frozenset({"timestamp", "timestamp_ntz", "date"})
_REAL = ("float", "double", "decimal")


def write_jobs(
    df: DataFrame,
    *,
    queue: str,
    key: str | None = None,
    order_by: str | None = None,
    data: str | Iterable[str] | None = None,
    id: str | None = None,
    name: str | Column | None = None,
    group_key: str | None = None,
    priority: str | None = None,
    tags: str | None = None,
    delay: str | None = None,
    start_after: str | datetime | None = None,
    write_id: str | None = None,
    using: str | None = None,
) -> None:
    """Send a job for each row, all or none, in the order of the column ``order_by``, or else of the rows.

    The other arguments name columns, except ``name``, which is the handler. ``data`` is a column that holds JSON, or
    columns that become one object; by default all columns that no other argument names. Spark may retry tasks. The
    whole write can be repeated safely only with ``id``, a column of ids, or ``write_id``, a name for this write. Raises
    ``QueueNotFound``, ``KeyRequired``, ``InvalidOption`` and errors of Spark; then nothing was sent.
    """
    using = database(using)
    target = find_queue(queue, using)
    if target.is_ordered and key is None:
        raise KeyRequired(queue)
    named = {"id": id, "singleton_key": key, "group_key": group_key, "priority": priority, "tags": tags,
             "delay": delay, "start_after": start_after}  # fmt: skip
    columns = {option: _column(df, option, value) for option, value in named.items() if value is not None}
    if name is not None:
        columns["name"] = name if isinstance(name, Column) else F.lit(check_text(name, option="name", max_length=255))
    if order_by is not None:
        columns["order"] = _order(df, _known(df, "order_by", order_by))
    used = {value for value in named.values() if isinstance(value, str)}
    columns["data"] = _data(df, data, used)
    options = {}
    if write_id is not None:
        options["write_id"] = check_text(write_id, option="write_id", max_length=200, required=True)
    rows = df.select(*(column.alias(option) for option, column in columns.items()))
    store(rows, queue=target.name, options=options, using=using)


def store(rows: DataFrame, *, queue: str, options: dict[str, str], using: str) -> None:
    """Stage these rows and make jobs of them; the rows have the columns of the format ``jobqueue``."""
    spark = rows.sparkSession
    writer = rows.write.format(bound(spark, using)).mode("append").option("queue", queue).options(**options)
    activate(spark)
    writer.save()


def _known(df: DataFrame, option: str, name: str) -> str:
    if name not in df.columns:
        raise InvalidOption(option, f"there is no column {name!r}", hint=f"The columns are {', '.join(df.columns)}.")
    return name


def _column(df: DataFrame, option: str, value: str | datetime) -> Column:
    if isinstance(value, datetime):
        return F.lit(value).cast("timestamp")
    return F.col(f"`{_known(df, option, value)}`").cast(WRITTEN[option][1])


def _order(df: DataFrame, name: str) -> Column:
    """The column to sort by: integers and times compare as integers, fractions as doubles, other types as bytes."""
    kind = df.schema[name].dataType.simpleString()
    column = F.col(f"`{name}`")
    if kind in _WHOLE:
        return column.cast("bigint")
    if kind in _MOMENTS:
        return F.unix_micros(column.cast("timestamp"))
    return column.cast("double" if kind.startswith(_REAL) else "string")


def _data(df: DataFrame, data: str | Iterable[str] | None, used: set[str]) -> Column:
    if isinstance(data, str):
        return F.col(f"`{_known(df, 'data', data)}`").cast("string")
    if data is None:
        names = [name for name in df.columns if name not in used]
    else:
        names = [_known(df, "data", name) for name in data]
    if not names:
        return F.lit(None).cast("string")
    whole = F.struct(*(F.col(f"`{name}`") for name in names))
    return F.to_json(whole, {"ignoreNullFields": "false"})
