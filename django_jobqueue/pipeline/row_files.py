"""The rows of CSV files and JSON lines, checked one by one: each becomes a job, or is set aside with the reason.

Spark's own readers guess: they match columns by position, infer one schema for all lines and misread quotes. So this
module reads each row as it was written, with Python's ``csv`` and ``json``, one file per task.

Like the data source it runs in Spark's processes: it imports neither Django nor other modules of this package, and
Spark pickles it by value.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

ROWS_AT_ONCE, BYTES_AT_ONCE = 4_000, 4_000_000  # of a batch that Spark gets
LONGEST_ROW = 64 * 1024 * 1024  # characters; a longer row has a quote that was never closed
LONGEST_KEY = 255
MOST_DIGITS = 4_000  # of a number: Python itself refuses to read more
MOST_SECONDS = 100 * 366 * 86_400
_LARGEST_FIELD = 2**31 - 1  # the most that Python's csv accepts; _Lines refuses rows that are too long
_VISIBLE = "jobqueue_visible"  # the error handler that decodes bytes that are not text
SHOWN = 60  # characters of a bad value in a reason

# The columns of the rows, with their types in Spark.
COLUMNS = {
    "file": "int",  # the number of the file, in the order of the call
    "row": "bigint",
    "line": "bigint",  # where the row begins
    "why": "string",  # why the row cannot be sent
    "content": "string",  # of a row that cannot be sent, as JSON
    "seen": "bigint",  # the columns of the mapping that the row has, as bits; null if unknown
    "identity": "string",
    "id": "string",
    "singleton_key": "string",
    "group_key": "string",
    "priority": "int",
    "tags": "array<string>",
    "delay": "double",
    "start_after": "timestamp",
    "order_number": "bigint",
    "order_real": "double",
    "order_text": "string",
    "data": "string",
}

_OF_OPTIONS = {
    "id": ("id",),
    "key": ("singleton_key",),
    "group_key": ("group_key",),
    "priority": ("priority",),
    "tags": ("tags",),
    "delay": ("delay",),
    "start_after": ("start_after",),
    "order_by": ("order_number", "order_real", "order_text"),
}

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}", re.ASCII)
_LONG_NUMBER = re.compile(r"[0-9.]{300}")
_KEY_ENDS = re.compile(r'"\s*:')  # or a part of a text that looks like one
_LARGE_EXPONENT = re.compile(r"[eE][+-]?[0-9]{3}")  # or a part of a text that looks like one
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WHITE = " \t\r\n"  # what JSON allows around a value; Python's strip() removes more
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Bad(Exception):
    """Why a row cannot be sent."""


class NoRow(Bad):
    """The row cannot be split into fields."""


class SourceFile(NamedTuple):
    """A file: its number in the order of the call, the name that identifies its rows, and its path."""

    place: int
    name: str
    path: str


@dataclass(frozen=True)
class Plan:
    """Which column becomes which option of a job, and the limits of its values."""

    columns: dict[str, str]  # option → column
    data: tuple[str, ...]  # columns; empty: all columns that no option names
    needs_key: bool
    scope: str  # equal rows of two calls are the same rows only if their scopes are equal
    max_bytes: int
    max_depth: int
    max_tags: int
    max_tag_length: int
    encoding: str = ""
    delimiter: str = ","

    used: frozenset[str] = field(init=False)  # columns that become options, not data
    named: tuple[str, ...] = field(init=False)  # every column that a file must have

    def __post_init__(self) -> None:
        used = frozenset(column for option, column in self.columns.items() if option != "order_by")
        object.__setattr__(self, "used", used)
        object.__setattr__(self, "named", tuple(dict.fromkeys([*self.columns.values(), *self.data])))


def columns_of(plan: Plan) -> dict[str, str]:
    """The columns that rows can fill. Options that are not mapped have no column, because each column costs time."""
    empty = {name for option, names in _OF_OPTIONS.items() if option not in plan.columns for name in names}
    return {name: type for name, type in COLUMNS.items() if name not in empty}


class Source(DataSource):
    """Rows as a DataFrame; a subclass is bound to its files."""

    kind = ""
    files: Sequence[SourceFile] = ()
    plan: Plan

    def schema(self) -> str:
        return ", ".join(f"`{name}` {type}" for name, type in columns_of(self.plan).items())

    def reader(self, schema: Any) -> Reader:
        return Reader(self)


class OneFile(InputPartition):
    def __init__(self, file: SourceFile) -> None:
        super().__init__(file)
        self.file = file


class Reader(DataSourceReader):
    def __init__(self, source: Source) -> None:
        self.kind, self.files, self.plan = source.kind, list(source.files), source.plan

    def partitions(self) -> Sequence[InputPartition]:
        return [OneFile(file) for file in self.files]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, OneFile):
            read = rows_of_csv if self.kind == "csv" else rows_of_json
            yield from _batches(read(partition.file, self.plan), self.plan)


def _batches(rows: Iterable[tuple[Any, ...]], plan: Plan) -> Iterator[Any]:
    import pyarrow

    moment = pyarrow.timestamp("us", tz="UTC")
    types = {"int": pyarrow.int32(), "bigint": pyarrow.int64(), "double": pyarrow.float64(), "string": pyarrow.string(),
             "timestamp": moment, "array<string>": pyarrow.list_(pyarrow.string())}  # fmt: skip
    schema = pyarrow.schema([(name, types[type]) for name, type in columns_of(plan).items()])
    places = [place for place, name in enumerate(COLUMNS) if name in schema.names]
    some: list[tuple[Any, ...]] = []
    size = 0

    def batch() -> Any:
        columns = list(zip(*some, strict=True))
        arrays = [pyarrow.array(columns[place], kind.type) for place, kind in zip(places, schema, strict=True)]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    for row in rows:
        some.append(row)
        size += len(row[-1] or row[4] or "")
        if len(some) >= ROWS_AT_ONCE or size > BYTES_AT_ONCE:
            yield batch()
            some, size = [], 0
    if some:
        yield batch()


# ------------------------------------------------------------------------------------------------------------- files


def opened(path: str, encoding: str = "") -> io.TextIOWrapper:
    """A file as text with unchanged line ends, in the encoding of its byte order mark if it has one."""
    opener = next((found for suffix, found in _OPENERS.items() if path.lower().endswith(suffix)), open)
    stream: Any = opener(path, "rb") if "://" not in path else _remote(path, opener)
    start = stream.peek(4)[:4]
    found = next((name for mark, name in _BOMS if start.startswith(mark)), encoding or "utf-8")
    # Bytes that are not text are kept as marks, so that their row can be set aside. Python's own way, surrogateescape,
    # does not work in encodings whose characters have two or four bytes.
    codecs.register_error(_VISIBLE, _visible)
    errors = _VISIBLE if codecs.lookup(found).name.startswith(("utf-16", "utf-32")) else "surrogateescape"
    return io.TextIOWrapper(stream, encoding=found, errors=errors, newline="")


def _visible(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


def _remote(url: str, opener: Callable[..., Any]) -> Any:
    from pyarrow import fs

    found, path = fs.FileSystem.from_uri(re.sub("^s3[an]://", "s3://", url))
    raw = found.open_input_stream(path, compression=None)
    return io.BufferedReader(raw) if opener is open else opener(raw, "rb")


class _Lines:
    """The lines of a file; lines that were taken since the last row belong to the next row."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._stream = stream
        self.taken: list[str] = []
        self.number = 0  # of lines taken
        self.size = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._stream:
            self.taken.append(line)
            self.number += 1
            self.size += len(line)
            if self.size > LONGEST_ROW:
                raise _Unreadable(f"a row begins here that has no end within {LONGEST_ROW:,} characters")
            yield line

    def row(self) -> tuple[int, list[str]]:
        """The number of the first line of the row, and its lines."""
        lines, self.taken, self.size = self.taken, [], 0
        return self.number - len(lines) + 1, lines


class _Unreadable(Exception):
    """The file cannot be read from here to its end."""


_BROKEN = (_Unreadable, UnicodeError, EOFError, zlib.error, lzma.LZMAError, csv.Error, OSError)


def _raise_unless_damaged(error: Exception, path: str) -> None:
    """Raise errors of the machine or the network, so that nothing is sent; damaged content is set aside."""
    if not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile):
        return
    if error.errno is not None or ("://" in path and str(error) != "Invalid data stream"):  # that is what bz2 says
        raise error


def _rows_of(
    file: SourceFile, plan: Plan, read: Callable[[SourceFile, Plan, _Lines], Iterator[tuple[Any, ...]]]
) -> Iterator[tuple[Any, ...]]:
    """The rows of a file; if it cannot be read to its end, the rest is one row that is set aside."""
    number, lines = 0, _Lines(())
    try:
        with opened(file.path, plan.encoding) as stream:
            lines = _Lines(stream)
            for row in read(file, plan, lines):
                number = row[1]
                yield row
    except _BROKEN as error:
        _raise_unless_damaged(error, file.path)
        line, taken = lines.row()
        why = f"from here to the end this file cannot be read: {error}"
        yield _bad_row(file, number + 1, max(line, 1), why, "".join(taken)[:1_000], None)


# --------------------------------------------------------------------------------------------------------------- CSV


def header_of(path: str, plan: Plan) -> list[str]:
    """The names of the columns; none if the file is empty or cannot be read."""
    before = csv.field_size_limit(_LARGEST_FIELD)
    try:
        with opened(path, plan.encoding) as stream:
            return next(csv.reader(_Lines(stream), delimiter=plan.delimiter), [])
    except _BROKEN as error:
        _raise_unless_damaged(error, path)
        return []
    finally:
        csv.field_size_limit(before)


def rows_of_csv(file: SourceFile, plan: Plan) -> Iterator[tuple[Any, ...]]:
    csv.field_size_limit(_LARGEST_FIELD)
    return _rows_of(file, plan, _csv_rows)


def _csv_rows(file: SourceFile, plan: Plan, lines: _Lines) -> Iterator[tuple[Any, ...]]:
    reader = csv.reader(lines, delimiter=plan.delimiter)
    header = next(reader, None)
    if header is None:
        return
    table = _Table(header, file, plan, _quotes_flaw(lines.row()[1], plan.delimiter))
    number = 0
    for fields in reader:
        line, taken = lines.row()
        if not fields:
            continue  # an empty line
        number += 1
        try:
            yield table.row(number, line, fields, taken)
        except Bad as bad:
            content: Any = "".join(taken).rstrip("\r\n")
            if table.flaw is None and not isinstance(bad, NoRow):
                content = dict(zip(header, fields, strict=True))
            yield _bad_row(file, number, line, str(bad), content, table.seen)


def _quotes_flaw(lines: list[str], delimiter: str) -> str | None:
    """The error in the quotes of a row: Python's csv accepts misplaced quotes and may drop them."""
    if '"' not in (lines[0] if len(lines) == 1 else "".join(lines)):
        return None
    try:
        next(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "a quoted field is not closed" if "unexpected end" in str(error) else f"misplaced quotes: {error}"
    return None


class _Table:
    """The rows of one CSV file, read by the names in its header."""

    def __init__(self, header: list[str], file: SourceFile, plan: Plan, flaw: str | None) -> None:
        self.header, self.file, self.plan = header, file, plan
        places = {name: place for place, name in enumerate(header)}
        chosen = plan.data or tuple(name for name in header if name not in plan.used)
        self.seen = _bits(plan, places)
        self.flaw = _header_flaw(header, plan, chosen) if flaw is None else f"the header has {flaw}"
        self._options = {option: places[column] for option, column in plan.columns.items() if column in places}
        data = [(encode_basestring(name), places[name]) for name in dict.fromkeys(chosen) if name in places]
        self._data = [(f"{', ' if number else '{'}{name}: ", place) for number, (name, place) in enumerate(data)]
        self._identity = blake2b(_joined([plan.scope, file.name, *header]), digest_size=16)

    def row(self, number: int, line: int, fields: list[str], taken: list[str]) -> tuple[Any, ...]:
        if self.flaw is not None:
            raise Bad(self.flaw)
        if flaw := _quotes_flaw(taken, self.plan.delimiter):
            raise NoRow(f"this line cannot be read as a row: {flaw}")
        if len(fields) != len(self.header):
            raise NoRow(
                f"this line cannot be read as a row: it has {len(fields)} fields, the header has {len(self.header)}"
            )
        _check_text(taken[0] if len(taken) == 1 else "".join(taken))
        data = (
            "".join([name + encode_basestring(fields[place]) for name, place in self._data]) + "}"
            if self._data
            else None
        )
        _check_size(data, self.plan)
        # An empty field is no value, because CSV cannot distinguish an empty text from no value.
        given = {option: fields[place] or None for option, place in self._options.items()}
        identity = self._identity.copy()
        identity.update("\0".join(fields).encode())  # the header gives their number, and no field contains NUL
        return (
            self.file.place,
            number,
            line,
            None,
            None,
            self.seen,
            identity.hexdigest(),
            *_options(given, self.plan),
            data,
        )


def _header_flaw(header: list[str], plan: Plan, chosen: Iterable[str]) -> str | None:
    for name in plan.named:
        if name not in header:
            return f"the header has no column {name!r}"
    twice = next((name for name in {*plan.named, *chosen} if header.count(name) > 1), None)
    if twice is not None:
        return f"the header has more than one column {twice!r}"
    try:
        _check_text("".join(header))
    except Bad as bad:
        return f"the header {bad}"
    return None


# -------------------------------------------------------------------------------------------------------- JSON lines


def rows_of_json(file: SourceFile, plan: Plan) -> Iterator[tuple[Any, ...]]:
    return _rows_of(file, plan, _json_rows)


def _json_rows(file: SourceFile, plan: Plan, lines: _Lines) -> Iterator[tuple[Any, ...]]:
    number = 0
    known_by = blake2b(_joined([plan.scope, file.name]), digest_size=16)
    objects = _Objects()
    for written in lines:
        line, _ = lines.row()
        text = written.strip(_WHITE)
        if not text:
            continue
        number += 1
        seen = None
        try:
            found = _parsed(text, plan, objects)
            seen = _bits(plan, found)
            given = {option: found.get(column) for option, column in plan.columns.items()}
            identity = known_by.copy()
            identity.update(text.encode())
            yield (file.place, number, line, None, None, seen, identity.hexdigest(), *_options(given, plan), text)
        except Bad as bad:
            yield _bad_row(file, number, line, str(bad), text, seen)


class _Objects:
    """Reads JSON texts, and refuses an object that repeats a key."""

    def __init__(self) -> None:
        self._quick = json.JSONDecoder(parse_constant=_no_number)
        self._strict = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_once)

    def read(self, text: str) -> Any:
        """The value of a text without white space around it.

        Most lines are one object without others inside. If it has as many keys as the text has colons, or ends of
        keys, no key is repeated, and the slower check is not needed.
        """
        if text.count("{") == 1:
            found, end = self._quick.raw_decode(text)
            if end == len(text) and isinstance(found, dict):
                number = len(found)
                if number == text.count(":") or number == len(_KEY_ENDS.findall(text)):
                    return found
        return self._strict.decode(text)


def _parsed(text: str, plan: Plan, objects: _Objects) -> dict[str, Any]:
    """A line as an object. The database gets its text unchanged, so everything that jsonb refuses is refused here."""
    _check_text(text)
    _check_size(text, plan)
    try:
        found = objects.read(text)
        if _LARGE_EXPONENT.search(text) or (len(text) >= 300 and _LONG_NUMBER.search(text)):
            json.loads(text, parse_float=_check_number, parse_int=_check_number)
    except RecursionError:
        raise Bad(f"data: nested more than {plan.max_depth} levels deep") from None
    except ValueError as error:
        if "digits" in str(error):
            raise Bad(f"data: a number has more than {MOST_DIGITS:,} digits") from None
        what = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Bad(f"this line cannot be read as a row: {what}") from None
    if not isinstance(found, dict):
        raise Bad("this line cannot be read as a row: it is not a JSON object")
    if text.count("{") + text.count("[") > plan.max_depth:
        _check_depth(found, plan.max_depth)
    if "\\u" in text:
        for one in _texts(found):
            _check_text(one)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Bad(f"data: {twice[:SHOWN]!a} is there more than once")
    return found


def _no_number(text: str) -> Any:
    raise Bad(f"data: {text} is not JSON")


def _check_number(text: str) -> int:
    digits, _, exponent = text.lower().partition("e")
    if len(digits) + abs(int(exponent or 0)) > MOST_DIGITS:
        raise Bad(f"data: a number has more than {MOST_DIGITS:,} digits")
    return 0


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise Bad("data: nested too deeply")
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            _check_depth(one, left - 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


# --------------------------------------------------------------------------------------------------- rows and values


def _bits(plan: Plan, names: Container[str]) -> int:
    return sum([1 << place for place, name in enumerate(plan.named) if name in names])


def _joined(texts: Sequence[str]) -> bytes:
    """The texts, each after its length, so that different lists give different bytes."""
    return "".join([f"{len(text)}:{text}" for text in texts]).encode("utf-8", "surrogatepass")


def _bad_row(file: SourceFile, number: int, line: int, why: str, content: Any, seen: int | None) -> tuple[Any, ...]:
    empty = (None,) * (len(COLUMNS) - 6)
    return (file.place, number, line, why.encode("utf-8", "replace").decode(), json.dumps(content), seen, *empty)


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise Bad("holds NUL, which PostgreSQL cannot store")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            if 0xDC00 <= code <= 0xDCFF:
                raise Bad(f"the byte 0x{code - 0xDC00:02x} is not text in the encoding of the file") from None
            raise Bad("holds half of a surrogate pair, which PostgreSQL cannot store") from None


def _check_size(data: str | None, plan: Plan) -> None:
    if data is not None and len(data) * 4 > plan.max_bytes and len(data.encode()) > plan.max_bytes:
        raise Bad(f"data: larger than {plan.max_bytes} bytes")


_NOTHING_ELSE = (None,) * 8  # of the options


def _options(given: dict[str, Any], plan: Plan) -> tuple[Any, ...]:
    """The values of the options of a job, in the order of COLUMNS."""
    get = given.get
    key = _key(get("key"), "key")
    if plan.needs_key and not key:
        raise Bad("key: empty")
    if given.keys() <= {"key"}:
        return None, key, *_NOTHING_ELSE
    delay, moment = _delay(get("delay")), _moment(get("start_after"))
    if delay is not None and moment is not None:
        raise Bad("delay: cannot be given together with start_after")
    id, group, priority = _id(given), _key(get("group_key"), "group_key"), _priority(get("priority"))
    return id, key, group, priority, _tags(get("tags"), plan), delay, moment, *_place(get("order_by"))


def _shown(value: Any) -> str:
    return value[:SHOWN] if isinstance(value, str) else json.dumps(value)[:SHOWN]


def _key(value: Any, option: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Bad(f"{option}: not a text: {_shown(value)}")
    if len(value) > LONGEST_KEY:
        raise Bad(f"{option}: longer than {LONGEST_KEY} characters")
    return value


def _id(given: dict[str, Any]) -> str | None:
    if "id" not in given:
        return None
    value = given["id"]
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise Bad(f"id: not a UUID: {'' if value is None else _shown(value)}")
    plain = value.replace("-", "").lower()
    return "-".join((plain[:8], plain[8:12], plain[12:16], plain[16:20], plain[20:]))


def _priority(value: Any) -> int | None:
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value.strip()) else value
    if not isinstance(number, int) or isinstance(number, bool) or not -(2**31) <= number < 2**31:
        raise Bad(f"priority: not int: {_shown(value)}")
    return number


def _delay(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value) if isinstance(value, str) and _REAL.fullmatch(value.strip()) else value
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise Bad(f"delay: not a number of seconds: {_shown(value)}")
    if not 0 <= number <= MOST_SECONDS:
        raise Bad(f"delay: not between 0 seconds and 100 years: {_shown(value)}")
    return float(number)


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError, AttributeError):
        raise Bad(f"start_after: not a time: {_shown(value)}") from None


def _tags(value: Any, plan: Plan) -> list[str] | None:
    if value is None:
        return None
    tags = [one.strip() for one in value.split(",")] if isinstance(value, str) else value
    if not isinstance(tags, list) or not all(isinstance(one, str) for one in tags):
        raise Bad(f"tags: not texts: {_shown(value)}")
    found = list(dict.fromkeys(tag for tag in tags if tag))
    if len(found) > plan.max_tags:
        raise Bad(f"tags: more than {plan.max_tags}")
    if any(len(tag) > plan.max_tag_length for tag in found):
        raise Bad(f"tags: one is longer than {plan.max_tag_length} characters")
    return found


def _place(value: Any) -> tuple[int | None, float | None, str | None]:
    """The value to sort by as an integer, a double and a text; the values of all rows decide which is used."""
    if value is None:
        return None, None, None
    text = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str):
        value = int(text) if _WHOLE.fullmatch(text) else float(text) if _REAL.fullmatch(text) else None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and math.isinf(value))
    ):
        return None, None, text
    whole = value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
    return whole, float(value) if abs(value) < 1e308 else math.copysign(1e308, value), text
