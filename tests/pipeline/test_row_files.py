"""Rows as they were written: Python's csv and json say what is in a file, and each row is that or is set aside."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pyspark = pytest.importorskip("pyspark")

from django_jobqueue.pipeline import row_files  # noqa: E402
from django_jobqueue.pipeline.row_files import (  # noqa: E402
    COLUMNS,
    Plan,
    SourceFile,
    header_of,
    rows_of_csv,
    rows_of_json,
)

quick = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
Row = dict[str, Any]


def plan(**changes: Any) -> Plan:
    limits = {"max_bytes": 1_000_000, "max_depth": 50, "max_tags": 50, "max_tag_length": 100}
    return Plan(**{"columns": {}, "data": (), "needs_key": False, "scope": "", **limits, **changes})


@pytest.fixture
def read(tmp_path) -> Callable[..., list[Row]]:
    def call(content: bytes | str, kind: str = "csv", name: str = "day", **wish: Any) -> list[Row]:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        rows = rows_of_csv if kind == "csv" else rows_of_json
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows(SourceFile(0, name, str(path)), plan(**wish))]

    return call


def data(rows: list[Row]) -> list[Any]:
    return [json.loads(row["data"]) if row["data"] else None for row in rows if row["why"] is None]


def reasons(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row["line"], row["why"]) for row in rows if row["why"] is not None]


# ---------------------------------------------------------------------------------------------------------------- CSV

fields = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", '"', 'say "hi"', "two\nlines", "two\r\nlines", "a,b", "a;b", " x ", "007", "=1+1", "'", "\\", "\\n", "ä€😀"]
)


@quick
@given(
    table=st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(fields, min_size=width, max_size=width), max_size=8)
    ),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    coding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
def test_what_python_writes_is_read_as_it_was(read, table, quoting, end, coding, delimiter):
    header = [f"column {number}" for number in range(len(table[0]) if table else 2)]
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=quoting, lineterminator=end, delimiter=delimiter)
    writer.writerows([header, *table])

    # Python quotes only the characters that lines end with, so it is asked what it reads.
    expected = [row for row in csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter) if row][1:]

    rows = read(out.getvalue().encode(coding), delimiter=delimiter)

    assert len(rows) == len(expected)
    assert data(rows) == [dict(zip(header, row, strict=True)) for row in expected if len(row) == len(header)]
    assert end != "\r\n" or expected == table


@quick
@given(
    text=st.text(st.sampled_from('ab,"\n\r x'), max_size=60), head=st.sampled_from(["a,b\n", "a\n", '"a",b\r\n', ""])
)
def test_whatever_it_is_each_row_of_it_is_python_s_or_set_aside(read, text, head):
    whole = head + text
    expected = [row for row in csv.reader(io.StringIO(whole, newline="")) if row or not whole]
    header, table = (expected[0], expected[1:]) if expected and not whole.startswith(("\n", "\r")) else ([], expected)

    rows = read(whole)

    assert len(rows) == len(table)
    assert [row["row"] for row in rows] == list(range(1, len(table) + 1))
    for row, fields in zip(rows, table, strict=True):
        if row["why"] is None:
            assert json.loads(row["data"]) == dict(zip(header, fields, strict=True))
        else:
            assert row["content"] is not None


def test_a_line_number_is_that_of_the_file_also_behind_quoted_line_breaks(read):
    rows = read('a,b\n1,"x\ny\nz"\n\n2\n3,4\n')

    assert [(row["row"], row["line"]) for row in rows] == [(1, 2), (2, 6), (3, 7)]
    assert reasons(rows) == [(6, "this line cannot be read as a row: it has 1 fields, the header has 2")]


@pytest.mark.parametrize("line", ('"a"b,c', '"a" ,c', '"a""b"c,d'))
def test_misplaced_quotes_are_set_aside_with_all_lines_of_the_row(read, line):
    rows = read(f'x,y\n{line}\n"open"x,"two\nlines"\n1,2\n')

    assert data(rows) == [{"x": "1", "y": "2"}]
    assert [line for line, why in reasons(rows) if "misplaced quotes" in why] == [2, 3]
    assert json.loads(rows[1]["content"]) == '"open"x,"two\nlines"', "as it is in the file"


def test_a_quote_that_is_never_closed_takes_the_rest_with_it_and_says_so(read):
    rows = read('x,y\n1,2\n3,"open\n5,6\n')

    assert data(rows) == [{"x": "1", "y": "2"}]
    assert reasons(rows) == [(3, "this line cannot be read as a row: a quoted field is not closed")]
    assert "5,6" in rows[1]["content"]


def test_a_row_without_end_is_not_read_into_memory(read, monkeypatch):
    assert row_files.LONGEST_ROW <= 64 * 1024 * 1024
    monkeypatch.setattr(row_files, "LONGEST_ROW", 10_000)
    rows = read('x,y\n1,2\n3,"open\n' + "z" * 60 + "\n" * 10_001)

    assert data(rows) == [{"x": "1", "y": "2"}]
    assert [line for line, _ in reasons(rows)] == [3]
    assert "from here to the end this file cannot be read" in rows[1]["why"]
    assert len(rows[1]["content"]) < 3_000


def test_a_large_field_is_no_problem_and_too_large_data_is(read):
    rows = read(f"x,y\n1,{'a' * 200_000}\n2,{'ä' * 600_000}\n3,b\n")

    assert [len(row["y"]) for row in data(rows)] == [200_000, 1]
    assert reasons(rows) == [(3, "data: larger than 1000000 bytes")]


def test_bytes_that_are_no_text_set_their_row_aside(read):
    rows = read(b"x,y\n1,caf\xe9\n2,\xf0\x9f\x98\x80\n3,a\0b\n")

    assert data(rows) == [{"x": "2", "y": "😀"}]
    assert [why for _, why in reasons(rows)] == [
        "the byte 0xe9 is not text in the encoding of the file",
        "holds NUL, which PostgreSQL cannot store",
    ]
    assert data(read(b"x,y\n1,caf\xe9\n", encoding="cp1252")) == [{"x": "1", "y": "café"}]


@pytest.mark.parametrize("coding", ("utf-16-le", "UTF_16BE", "utf-32-le"))
def test_bytes_that_are_no_utf_16_set_their_row_aside_and_no_other(read, coding):
    unit = 4 if "32" in coding else 2
    half = "\ud800".encode(coding, "surrogatepass")
    rows = read("x,y\n1,a".encode(coding) + half + "\n2,b\n3,4".encode(coding)[: 1 - unit], encoding=coding)

    assert data(rows) == [{"x": "2", "y": "b"}]
    assert [(line, "is not text in the encoding of the file" in why) for line, why in reasons(rows)] == [
        (2, True),
        (4, True),
    ]


def test_an_encoding_that_does_not_fit_sets_the_file_aside(read):
    (row,) = read("x,y\n1,2\n".encode("utf-16-le"), encoding="utf-16", columns={"key": "x"})

    assert row["why"].startswith("from here to the end this file cannot be read: UTF-16 stream does not start with BOM")
    assert row["seen"] is None


@pytest.mark.parametrize(
    ("header", "wish", "why"),
    (
        ("a,a", {}, "the header has more than one column 'a'"),
        ("a,b", {"columns": {"key": "k"}}, "the header has no column 'k'"),
        ('"a"x,b', {}, "the header has misplaced quotes: ',' expected after '\"'"),
    ),
)
def test_rows_below_a_header_that_cannot_be_used_are_set_aside(read, header, wish, why):
    assert reasons(read(f"{header}\n1,2\n", **wish)) == [(2, why)]


def test_a_column_that_is_there_twice_does_no_harm_where_it_is_not_used(read):
    assert data(read("a,a,b\n1,2,3\n", data=("b",))) == [{"b": "3"}]


@pytest.mark.parametrize("content", ("", "\ufeff", "a,b", "a,b\n\n\n"))
def test_a_file_without_rows_has_none(read, content):
    assert read(content) == []


@pytest.mark.parametrize(
    ("suffix", "squeeze"), ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress))
)
def test_compressed_files_are_read_and_broken_ones_set_aside(read, suffix, squeeze):
    content = squeeze(b"a,b\n" + b"1,2\n" * 50_000)

    assert len(data(read(content, name=f"day.csv{suffix}"))) == 50_000
    broken = read(content[: len(content) // 2], name=f"day.csv{suffix}")
    assert broken[-1]["why"].startswith("from here to the end this file cannot be read")


def test_the_header_is_read_without_the_rows(tmp_path):
    file = tmp_path / "day.csv"
    file.write_bytes(codecs.BOM_UTF8 + b'"one, two",b\n')

    assert header_of(str(file), plan()) == ["one, two", "b"]
    for suffix in (".gz", ".bz2", ".xz"):
        os.link(file, damaged := tmp_path / f"day.csv{suffix}")
        assert header_of(str(damaged), plan()) == [], "its rows are set aside"
    with pytest.raises(FileNotFoundError):
        header_of(str(tmp_path / "none.csv"), plan())


# --------------------------------------------------------------------------------------------------------- JSON lines

scalars = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
objects = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", max_size=2), inner)
    ),
    max_size=4,
)


@quick
@given(values=st.lists(objects, max_size=6), end=st.sampled_from(["\n", "\r\n", "\r"]), ascii=st.booleans())
def test_a_line_goes_as_it_is(read, values, end, ascii):
    lines = [json.dumps(value, ensure_ascii=ascii) for value in values]

    rows = read(end.join(lines), "json")

    assert [row["data"] for row in rows if row["why"] is None] == [line for line in lines if "\\u0000" not in line]
    assert {why for _, why in reasons(rows)} <= {"holds NUL, which PostgreSQL cannot store"}


@pytest.mark.parametrize(
    ("line", "why"),
    (
        ('{"a": 1, "a": 2}', "data: 'a' is there more than once"),
        ('{"x": [{"a": 1, "a": 2}]}', "data: 'a' is there more than once"),
        ('{"a": "\\u0000"}', "holds NUL, which PostgreSQL cannot store"),
        ('{"\\u0000": 1}', "holds NUL, which PostgreSQL cannot store"),
        ('{"a": "\\ud800"}', "holds half of a surrogate pair, which PostgreSQL cannot store"),
        ('{"a": NaN}', "data: NaN is not JSON"),
        ('{"a": -Infinity}', "data: -Infinity is not JSON"),
        ('{"a": 1e5000}', "data: a number has more than 4,000 digits"),
        ('{"a": 1e-99999}', "data: a number has more than 4,000 digits"),
        (f'{{"a": {"7" * 5_000}}}', "data: a number has more than 4,000 digits"),
        (f'{{"a": {"[" * 60}{"]" * 60}}}', "data: nested too deeply"),
        (f'{{"a": {"[" * 60_000}{"]" * 60_000}}}', "data: nested more than 50 levels deep"),
        ("[1]", "this line cannot be read as a row: it is not a JSON object"),
        ('{"a": 1} {"a": 2}', "this line cannot be read as a row: Extra data at character 10"),
        ('{"a": 1}\x0b', "this line cannot be read as a row: Extra data at character 9"),
        ('{"a": 1', "this line cannot be read as a row: Expecting ',' delimiter at character 8"),
    ),
)
def test_a_line_that_cannot_be_stored_exactly_is_set_aside(read, line, why):
    rows = read(f'{{"n": 1}}\n{line}\n\n{{"n": 2}}\n', "json")

    assert data(rows) == [{"n": 1}, {"n": 2}]
    assert reasons(rows) == [(2, why)]
    assert rows[1]["seen"] is None, "which keys it has is not known"


def test_escapes_and_large_numbers_that_can_be_stored_are_no_problem(read):
    lines = [
        '{"a": "\\\\u0000"}',
        '{"a": "\\ud83d\\ude00"}',
        '{"a": 1e300}',
        f'{{"a": {"7" * 3_000}}}',
        '{"a": "1e9999"}',
    ]

    rows = read("\n".join(lines), "json")

    assert [row["data"] for row in rows] == lines
    assert reasons(rows) == []


# ------------------------------------------------------------------------------------------------- options of the jobs


@pytest.mark.parametrize("kind", ("csv", "json"))
@pytest.mark.parametrize(
    ("option", "value", "found"),
    (
        ("priority", "5", 5), ("priority", "-1", -1), ("priority", "high", "priority: not int: high"),
        ("priority", "1.5", "priority: not int: 1.5"), ("priority", "9" * 12, f"priority: not int: {'9' * 12}"),
        ("priority", "\u0661", "priority: not int: \u0661"), ("priority", "1_0", "priority: not int: 1_0"),
        ("delay", "1.5", 1.5), ("delay", "-1", "delay: not between 0 seconds and 100 years: -1"),
        ("delay", "nan", "delay: not a number of seconds: nan"),
        ("delay", "1e30", "delay: not between 0 seconds and 100 years: 1e30"),
        ("start_after", "soon", "start_after: not a time: soon"),
        ("tags", "a, b,a", ["a", "b"]), ("tags", "x" * 101, "tags: one is longer than 100 characters"),
        ("tags", ",".join(map(str, range(60))), "tags: more than 50"),
        ("key", "k" * 256, "key: longer than 255 characters"), ("group_key", "g", "g"),
        ("id", "no", "id: not a UUID: no"),
        ("id", "0F" * 16, "0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f"),
    ),
)  # fmt: skip
def test_what_a_column_says_about_a_job(read, kind, option, value, found):
    content = f'c\n"{value}"\n' if kind == "csv" else json.dumps({"c": value})
    name = "singleton_key" if option == "key" else option

    [row] = read(content, kind, columns={option: "c"})

    assert (row["why"] or row[name]) == found


@pytest.mark.parametrize(
    ("option", "value", "found"),
    (
        ("priority", 5, 5), ("priority", True, "priority: not int: true"), ("key", 7, "7"), ("key", None, None),
        ("key", 1.5, "key: not a text: 1.5"), ("tags", ["a", "b"], ["a", "b"]), ("tags", [1], "tags: not texts: [1]"),
        ("delay", 2, 2.0), ("start_after", 5, "start_after: not a time: 5"),
    ),
)  # fmt: skip
def test_values_of_json_keep_their_types(read, option, value, found):
    [row] = read(json.dumps({"c": value}), "json", columns={option: "c"})

    assert (row["why"] or row["singleton_key" if option == "key" else option]) == found


def test_a_time_without_a_zone_is_utc_and_cannot_stand_beside_a_delay(read):
    rows = read("t,d\n2026-01-02T03:04:05,\n2026-01-02 03:04:05+02:00,\n2026-01-02,5\n,\n",
                columns={"start_after": "t", "delay": "d"})  # fmt: skip

    assert [row["start_after"] and row["start_after"].isoformat() for row in rows] == [
        "2026-01-02T03:04:05+00:00", "2026-01-02T01:04:05+00:00", None, None,
    ]  # fmt: skip
    assert reasons(rows) == [(4, "delay: cannot be given together with start_after")]


def test_an_ordered_queue_needs_a_key_in_each_row(read):
    assert reasons(read("k,n\n,1\na,2\n", columns={"key": "k"}, needs_key=True)) == [(2, "key: empty")]
    assert reasons(read('{"n": 1}\n{"k": ""}\n', "json", columns={"key": "k"}, needs_key=True)) == [
        (1, "key: empty"), (2, "key: empty"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "place"),
    (
        ("7", (7, 7.0, "7")), ("-7", (-7, -7.0, "-7")), ("1.5", (None, 1.5, "1.5")), ("x", (None, None, "x")),
        ("", (None, None, None)), ("9" * 25, (None, 1e25, "9" * 25)), ("1e400", (None, None, "1e400")),
    ),
)  # fmt: skip
def test_what_rows_are_ordered_by_may_be_a_number_or_a_text(read, value, place):
    row = read(f'o\n"{value}"\n', columns={"order_by": "o"})[0]

    assert (row["order_number"], row["order_real"], row["order_text"]) == place


# ------------------------------------------------------------------------------------------------------------ identity


def test_a_row_is_known_by_its_file_its_columns_and_what_is_in_it(read):
    def identity(content: str, kind: str = "csv", **wish: Any) -> str:
        return str(read(content, kind, **wish)[0]["identity"])

    first = identity("a,b\n1,2\n")
    assert identity('"a","b"\r\n"1","2"\r\n') == first
    others = [
        identity("a,b\n1,3\n"), identity("b,a\n1,2\n"), identity("a,b\n12,\n"), identity("a,b\n1,2\n", name="night"),
        identity("a,b\n1,2\n", scope="other"), identity('{"a": 1}', "json"), identity('{"a": 1.0}', "json"),
    ]  # fmt: skip
    assert len({first, *others}) == 8


def test_no_file_is_left_open(read, recwarn):
    read("a,b\n1,2\n")
    read('{"a": 1}', "json")

    assert [str(one.message) for one in recwarn if one.category is ResourceWarning] == []
