"""The rows of Parquet files, read by their types, with the same columns as the rows of :mod:`row_files`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..exceptions import InvalidOption
from .row_files import COLUMNS, LONGEST_KEY, MOST_SECONDS, Plan, SourceFile

_UUID = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
_NUL = r"(?<!\\)(?:\\\\)*\\u0000"  # but not after an escaped backslash
_AS_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
ROW = "the number of the row, by jobqueue"  # a name that no column of a file has
_MOMENTS = (TimestampType, TimestampNTZType, DateType)


def rows_of_parquet(spark: SparkSession, files: Sequence[SourceFile], bases: Sequence[str], plan: Plan) -> DataFrame:
    """The rows of all files, each file read by its own schema, whatever columns the others have.

    ``bases`` are, for each file, the folder that the caller named: names of folders below it, like ``day=1``, are
    columns. Raises ``InvalidOption`` for a file that is not Parquet.
    """
    nanoseconds = {file.path: _nanoseconds(file.path) for file in files if "://" not in file.path}
    if len({file.path for file in files}) == len(nanoseconds) and None not in nanoseconds.values():
        spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")  # otherwise Spark refuses to read them
    schemas: dict[tuple[str, str], StructType] = {}
    parts = []
    for file, base in zip(files, bases, strict=True):
        reader = spark.read.option("basePath", base) if base else spark.read
        known = (base, file.path if "://" in file.path else str(pyarrow.parquet.read_schema(file.path)))
        if known not in schemas:
            schemas[known] = reader.parquet(file.path).schema
        table = reader.schema(schemas[known]).parquet(file.path)
        parts.append(_rows(table, file, plan, nanoseconds.get(file.path) or {}))
    return reduce(DataFrame.unionByName, parts)


def _nanoseconds(path: str) -> dict[str, str] | None:
    """The columns of times with nanoseconds, as pandas writes them, each with its suffix: ``Z`` if it is in UTC.

    ``None`` if lists or structs hold such times.
    """
    try:
        columns = pyarrow.parquet.read_metadata(path).schema
    except pyarrow.ArrowException as error:
        raise InvalidOption("files", f"{path!r} cannot be read as Parquet: {str(error).rstrip('.')}") from error
    kinds = {columns.column(index).path: str(columns.column(index).logical_type) for index in range(len(columns))}
    suffixes = {
        name: "Z" if "isAdjustedToUTC=true" in kind else ""
        for name, kind in kinds.items()
        if kind.startswith("Timestamp") and "timeUnit=nanoseconds" in kind
    }
    return suffixes if suffixes.keys() <= set(columns.to_arrow_schema().names) else None


def _as_text(nanoseconds: Column, suffix: str) -> Column:
    """A time as text with microseconds, or with nanoseconds if these are not zero."""
    rest = F.pmod(nanoseconds, F.lit(1_000))
    micros = F.call_function("div", nanoseconds - rest, F.lit(1_000))
    digits = F.when(rest == 0, F.lit("")).otherwise(F.lpad(rest.cast("string"), 3, "0"))
    return F.concat(F.date_format(F.timestamp_micros(micros), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"), digits, F.lit(suffix))


def _rows(table: DataFrame, file: SourceFile, plan: Plan, nanoseconds: dict[str, str]) -> DataFrame:
    number = table.metadataColumn("_metadata").getField("row_index") + 1
    texts = [_as_text(_col(name), nanoseconds[name]) if name in nanoseconds else _col(name) for name in table.columns]
    whole = table.select(
        *(text.alias(name) for text, name in zip(texts, table.columns, strict=True)), number.alias(ROW)
    )
    schema = StructType(whole.schema.fields[:-1])
    return whole.select(*_chosen(schema, file, plan))


def _chosen(schema: StructType, file: SourceFile, plan: Plan) -> list[Column]:
    names = schema.names
    chosen = [name for name in plan.data or names if name in names and (plan.data or name not in plan.used)]
    missing = [name for name in plan.named if name not in names]
    written = F.to_json(F.struct(*map(_col, names)), _AS_JSON) if names else F.lit("")
    scope = F.lit(f"{plan.scope}\n{len(file.name)}:{file.name}\n")
    why = F.coalesce(*_problems(schema, plan, missing, chosen))
    values = {
        "file": F.lit(file.place),
        "row": F.col(ROW),
        "line": F.col(ROW),
        "why": why,
        "content": F.when(why.isNotNull(), written),
        "seen": F.lit(sum(1 << place for place, name in enumerate(plan.named) if name in names)),
        "identity": F.substring(F.sha2(F.concat(scope, written), 256), 1, 32),
        **_options(schema, plan),
        "data": F.to_json(F.struct(*map(_col, chosen)), _AS_JSON) if chosen else F.lit(None),
    }
    return [values[name].cast(type).alias(name) for name, type in COLUMNS.items()]


def _col(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _options(schema: StructType, plan: Plan) -> dict[str, Column]:
    nothing = F.lit(None)
    mapped = {option: name for option, name in plan.columns.items() if name in schema.names}

    def text(option: str) -> Column:
        return F.nullif(_col(mapped[option]).cast("string"), F.lit("")) if option in mapped else nothing.cast("string")

    plain = F.lower(F.replace(text("id"), F.lit("-"), F.lit("")))
    pieces = (F.substring(plain, start, length) for start, length in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12)))
    return {
        "id": F.when(text("id").isNotNull(), F.concat_ws("-", *pieces)),
        "singleton_key": text("key"),
        "group_key": text("group_key"),
        "priority": text("priority").try_cast("int"),
        "tags": _tags(schema, mapped["tags"]) if "tags" in mapped else nothing,
        "delay": text("delay").try_cast("double"),
        "start_after": text("start_after").try_cast("timestamp"),
        **_order(schema, mapped.get("order_by")),
    }


def _order(schema: StructType, name: str | None) -> dict[str, Column]:
    nothing = F.lit(None)
    if name is None:
        return {"order_number": nothing, "order_real": nothing, "order_text": nothing}
    text = F.nullif(_col(name).cast("string"), F.lit(""))
    if isinstance(schema[name].dataType, _MOMENTS):
        number = F.unix_micros(_col(name).cast("timestamp"))
    else:
        number = F.when(text.rlike(r"^[+-]?[0-9]+$"), text.try_cast("bigint"))
    return {"order_number": number, "order_real": text.try_cast("double"), "order_text": text}


def _tags(schema: StructType, name: str) -> Column:
    many = _col(name) if isinstance(schema[name].dataType, ArrayType) else F.split(_col(name).cast("string"), ",")
    trimmed = F.transform(many.cast("array<string>"), F.trim)
    return F.array_distinct(F.filter(trimmed, lambda tag: tag.isNotNull() & (tag != "")))


def _problems(schema: StructType, plan: Plan, missing: Sequence[str], chosen: Iterable[str]) -> list[Column]:
    """Why a row cannot be sent, or null, for each check; the first that is not null counts."""
    if missing:
        return [F.lit(f"the file has no column {missing[0]!r}")]
    options = _options(schema, plan)
    texts = {option: _col(name).cast("string") for option, name in plan.columns.items()}
    problems = [F.lit(None).cast("string")]

    def add(problem: Column, *text: Column | str) -> None:
        parts = (F.lit(part) if isinstance(part, str) else part for part in text)
        problems.append(F.when(problem, F.concat(*parts)))

    for name in schema.names:
        for kind, problem in _not_json(_col(name), schema[name].dataType):
            add(problem, f"{name}: {kind}")
    for option, column in (("key", "singleton_key"), ("group_key", "group_key")):
        if option in texts:
            add(F.length(options[column]) > LONGEST_KEY, f"{option}: longer than {LONGEST_KEY} characters")
            add(options[column].contains("\0"), f"{option}: holds NUL, which PostgreSQL cannot store")
    if plan.needs_key:
        add(options["singleton_key"].isNull(), "key: empty")
    for option, kind in (("priority", "int"), ("delay", "a number of seconds"), ("start_after", "a time")):
        if option in texts:
            text = F.nullif(texts[option], F.lit(""))
            add(text.isNotNull() & options[option].isNull(), f"{option}: not {kind}: ", texts[option])
    if "delay" in texts:
        in_range = options["delay"].between(0, MOST_SECONDS)
        add(options["delay"].isNotNull() & ~in_range, "delay: not between 0 seconds and 100 years: ", texts["delay"])
    if "delay" in texts and "start_after" in texts:
        both = options["delay"].isNotNull() & options["start_after"].isNotNull()
        add(both, "delay: cannot be given together with start_after")
    if "tags" in texts:
        long = F.exists(options["tags"], lambda tag: F.length(tag) > plan.max_tag_length)
        add(F.size(options["tags"]) > plan.max_tags, f"tags: more than {plan.max_tags}")
        add(long, f"tags: one is longer than {plan.max_tag_length} characters")
    if "id" in texts:
        text = F.coalesce(texts["id"], F.lit(""))
        add(~text.rlike(_UUID), "id: not a UUID: ", text)
    data = F.to_json(F.struct(*map(_col, chosen)), _AS_JSON) if chosen else F.lit("")
    add(F.octet_length(data) > plan.max_bytes, f"data: larger than {plan.max_bytes} bytes")
    add(data.rlike(_NUL), "data: holds NUL, which PostgreSQL cannot store")
    return problems


def _not_json(column: Column, kind: DataType) -> list[tuple[str, Column]]:
    """Checks for values that JSON cannot represent exactly, at any depth: a text and a condition for each."""
    match kind:
        case FloatType() | DoubleType():
            infinite = F.abs(column) == F.lit(float("inf"))
            return [("not a number that JSON can represent", F.isnan(column) | infinite)]
        case StringType():
            return [("not UTF-8", ~F.is_valid_utf8(column))]
        case ArrayType():
            return _within(column, kind.elementType)
        case MapType():
            keys = F.map_keys(column)
            twice = ("a key is there more than once", F.size(keys) != F.size(F.array_distinct(keys)))
            return [twice, *_within(keys, kind.keyType), *_within(F.map_values(column), kind.valueType)]
        case StructType():
            return [check for field in kind.fields for check in _not_json(column.getField(field.name), field.dataType)]
        case _:
            return []


def _within(column: Column, kind: DataType) -> list[tuple[str, Column]]:
    return [(name, F.exists(column, _problem(kind, index))) for index, (name, _) in enumerate(_not_json(column, kind))]


def _problem(kind: DataType, index: int) -> Callable[[Column], Column]:
    """The condition of a check; a function, because PySpark does not accept a lambda that has a default argument."""
    return lambda value: _not_json(value, kind)[index][1]


def files_in(folder: Path) -> list[Path]:
    """The files that Spark reads in a folder: at any depth, without names that begin with a dot or an underscore."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part[0] in "._" for part in path.relative_to(folder).parts))
