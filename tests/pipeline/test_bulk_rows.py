"""Files that are sent again, that grew, shrank or changed: every row is sent once, with exactly its data (F90)."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, SparkUnavailable
from django_jobqueue.models import Job, JobWrite, SentRow, StagedJob
from tests.commands.calling import jobs
from tests.past import ago


@pytest.fixture
def send(spark, tmp_path):
    def call(*files: Any, **options: Any):
        from django_jobqueue.pipeline import Mapping, bulk_send

        names = ("queue", "dry_run", "format", "batch", "again", "encoding", "delimiter", "aside")
        given = {name: options.pop(name) for name in names if name in options}
        call = {"queue": "work", "aside": tmp_path / "aside.jsonl", **given}
        return bulk_send([*map(str, files)], mapping=Mapping(**options), spark=spark, **call)

    return call


@pytest.fixture(autouse=True)
def queues(transactional_db: None) -> None:
    services.create_queue("work")
    services.create_queue("other")


def stored(queue: str = "work") -> list[tuple[str, Any]]:
    """Keys and data in the order sent, numbers as they are."""
    with connection.cursor() as cursor:
        keys = "singleton_key || group_key"
        cursor.execute(f"SELECT {keys}, data::text FROM jobqueue_job WHERE queue_id = %s ORDER BY seq", [queue])
        return [(key, None if text is None else json.loads(text, parse_float=Decimal)) for key, text in cursor]


def written(folder: Path, name: str, content: str) -> Path:
    file = folder / name
    file.write_bytes(content.encode())
    return file


# ------------------------------------------------------------------------------------------------------ which is which


def test_another_content_of_the_same_name_is_new(send, tmp_path):
    file = written(tmp_path, "day.csv", "customer,n\nanna,1\nben,2\n")
    assert send(file, key="customer").sent == 2

    written(tmp_path, "day.csv", "customer,n\ncarl,1\ndora,2\n")
    done = send(file, key="customer")

    assert (done.sent, done.known) == (2, 0)
    assert [key for key, _ in stored()] == ["anna", "ben", "carl", "dora"]


def test_another_queue_mapping_handler_batch_or_name_is_new_and_the_same_is_known(send, tmp_path):
    file = written(tmp_path, "day.csv", "customer,n\nanna,1\nben,2\n")
    calls: list[dict[str, Any]] = [
        {"key": "customer"}, {"key": "customer", "queue": "other"}, {}, {"group_key": "customer"}, {"data": ("n",)},
        {"name": "shop.invoice"}, {"batch": "monday"}, {"group_key": "customer", "batch": "monday"},
    ]  # fmt: skip

    assert [send(file, **wish).sent for wish in calls] == [2] * len(calls)
    for wish in calls:
        again = send(file, **wish)
        assert (again.sent, again.known) == (0, 2)
    os.rename(file, tmp_path / "night.csv")
    assert send(tmp_path / "night.csv").sent == 2
    (tmp_path / "moved").mkdir()
    os.rename(tmp_path / "night.csv", tmp_path / "moved" / "night.csv")
    assert send(tmp_path / "moved" / "night.csv", order_by="n").known == 2  # the order makes no other jobs


def test_a_file_that_grew_or_lost_rows_sends_the_new_ones_only(send, tmp_path):
    file = written(tmp_path, "day.csv", "n\n1\n2\n2\n3\n")
    assert send(file).sent == 4

    written(tmp_path, "day.csv", "n\n2\n2\n2\n3\n4\n")  # the first is gone, one more 2 and a 4 came
    done = send(file)

    assert (done.sent, done.known) == (2, 3)
    assert Counter(data["n"] for _, data in stored()) == {"1": 1, "2": 3, "3": 1, "4": 1}


def test_equal_rows_of_equal_names_in_one_call_are_all_sent(send, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [written(tmp_path / one, "day.csv", "n\n1\n1\n") for one in "ab"]

    assert send(*files, tmp_path / "*" / "day.csv", f"{tmp_path}/a/../b/day.csv").sent == 4, "each file once"
    assert send(*files).known == 4
    assert send(files[1]).known == 2  # another file of this name with equal rows cannot be told apart
    assert send(files[1], batch="b").sent == 2


def test_again_sends_everything_and_what_it_sent_is_known(send, tmp_path):
    file = written(tmp_path, "day.csv", "n\n1\n2\n")

    assert [send(file).sent, send(file, again=True).sent, send(file).sent] == [2, 2, 0]
    tried = send(file, again=True, dry_run=True)
    assert (tried.new, tried.known, len(tried.first)) == (2, 0, 2)
    written(tmp_path, "new.csv", "n\n1\n")
    assert [send(tmp_path / "new.csv", again=True).sent, send(tmp_path / "new.csv").known] == [1, 1]


def test_rows_stay_known_when_their_jobs_are_gone(send, tmp_path):
    file = written(tmp_path, "day.jsonl", '{"n": 1}\n')
    assert send(file).sent == 1
    Job.objects.all().delete()

    assert send(file).known == 1


def test_rows_are_forgotten_when_they_were_not_seen_for_long(send, tmp_path, settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "SENT_ROW_DAYS": 30}
    file = written(tmp_path, "day.jsonl", '{"n": 1}\n{"n": 2}\n')
    assert send(file).sent == 2

    SentRow.objects.update(seen_at=ago(days=20))
    assert send(file).known == 2  # seen now
    services.forget_staged()
    assert SentRow.objects.filter(seen_at__gt=ago(minutes=1)).count() == 2

    SentRow.objects.update(seen_at=ago(days=31))
    services.forget_staged()
    assert not SentRow.objects.exists()
    assert send(file).sent == 2


def test_two_calls_at_once_send_each_row_once(send, tmp_path):
    def send_and_close(*files: Path, **options: Any) -> Any:
        try:
            return send(*files, **options)
        finally:
            connections.close_all()  # of this thread

    files = [written(tmp_path, f"{one}.csv", "n\n" + "\n".join(map(str, range(2_000)))) for one in "ab"]
    with ThreadPoolExecutor(2) as both:
        calls = [
            both.submit(send_and_close, *order, aside=tmp_path / f"{n}") for n, order in enumerate((files, files[::-1]))
        ]
        done = [call.result() for call in calls]

    assert sum(one.sent for one in done) == sum(one.known for one in done) == 4_000
    assert Job.objects.count() == 4_000


# --------------------------------------------------------------------------------------------------------- exact data


def test_columns_are_matched_by_name_in_each_file(send, tmp_path):
    files = [written(tmp_path, "a.csv", "customer,n\nanna,3\n"), written(tmp_path, "b.csv", "n,customer\n4,ben\n")]

    done = send(*files, key="customer")

    assert (done.sent, done.bad) == (2, 0)
    assert stored() == [("anna", {"n": "3"}), ("ben", {"n": "4"})]


def test_a_file_without_the_column_is_set_aside_and_the_others_are_sent(send, tmp_path):
    files = [written(tmp_path, "a.csv", "customer,n\nanna,3\n"), written(tmp_path, "b.csv", "name,n\nben,4\n")]

    done = send(*files, key="customer")

    assert (done.sent, done.bad) == (1, 1)
    aside = json.loads(Path(done.aside).read_text())
    assert (aside["file"], aside["line"], aside["why"]) == (str(files[1]), 2, "the header has no column 'customer'")


def test_json_lines_go_as_they_are(send, tmp_path):
    lines = [
        '{"customer": "anna", "n": 1, "x": 1.10}', '{"customer": 7, "n": "1"}', '{"n": 12345678901234567890123}',
        '{"customer": "ben", "deep": {"customer": 1}, "e": 1e3}',
    ]  # fmt: skip
    file = written(tmp_path, "day.jsonl", "\n".join(lines))
    assert send(file, key="customer").sent == 4

    assert stored() == [
        ("anna", {"n": 1, "x": Decimal("1.10")}), ("7", {"n": "1"}), ("", {"n": 12345678901234567890123}),
        ("ben", {"deep": {"customer": 1}, "e": 1000}),
    ]  # fmt: skip
    written(tmp_path, "day.jsonl", "\n".join([*lines, '{"customer": "carl", "new": true}']))
    done = send(file, key="customer")
    assert (done.sent, done.known) == (1, 4)


def test_chosen_keys_of_json_lines(send, tmp_path):
    file = written(tmp_path, "day.jsonl", '{"a": 1, "b": 2.50, "c": 3}\n{"a": 4, "c": null}\n{"b": 5}\n')

    send(file, data=("a", "b"))

    assert [data for _, data in stored()] == [{"a": 1, "b": Decimal("2.50")}, {"a": 4}, {"b": 5}]


def test_rows_that_cannot_be_read_are_set_aside_also_if_there_are_no_others(send, tmp_path):
    done = send(written(tmp_path, "day.jsonl", '{"k": 1, "k": 2}\n'), key="k")
    assert (done.rows, done.bad, Path(done.aside).exists()) == (1, 1, True)


def test_a_column_that_no_row_has_is_a_mistake_and_nothing_is_sent(send, tmp_path):
    file = written(tmp_path, "day.jsonl", '{"a": 1}\n')

    with pytest.raises(InvalidOption, match="there is no column 'kunde'"):
        send(file, key="kunde")
    assert (Job.objects.count(), SentRow.objects.count(), StagedJob.objects.count()) == (0, 0, 0)


def test_order_by_numbers_texts_and_the_place_of_equal_ones(send, tmp_path):
    csv_file = written(tmp_path, "a.csv", "n,m\n10,a\n9,b\n9,c\n,d\n-1,e\n")
    send(csv_file, order_by="n")
    assert [data["m"] for _, data in stored()] == ["e", "b", "c", "a", "d"]

    mixed = written(tmp_path, "b.jsonl", "".join(f'{{"n": {n}}}\n' for n in ("10", "9.5", '"9"', "1e1")))
    send(mixed, order_by="n", queue="other")
    assert [data["n"] for _, data in stored("other")] == ["9", Decimal("9.5"), 10, 10]


def test_parquet_is_read_by_its_types_and_each_file_by_its_schema(send, tmp_path, spark):
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "a").mkdir()
    rows = {
        "customer": ["anna"], "at": [datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)], "Customer": ["new"],
        "large": [Decimal("12345678901234567890123")], "list": [[1, None]],
    }  # fmt: skip
    parquet.write_table(pyarrow.table(rows), tmp_path / "a" / "1.parquet")
    frame = spark.createDataFrame([("ben", float("nan")), ("carl", 1.5)], "customer string, x double")
    frame.coalesce(1).write.parquet(str(tmp_path / "b"))

    done = send(tmp_path / "a", tmp_path / "b", key="customer", format="parquet")

    assert (done.sent, done.bad) == (2, 1)
    assert stored() == [
        ("anna", {"at": "2026-01-02T03:04:05.123456Z", "Customer": "new", "large": 12345678901234567890123,
                  "list": [1, None]}),
        ("carl", {"x": Decimal("1.5")}),
    ]  # fmt: skip
    assert json.loads(Path(done.aside).read_text())["why"] == "x: not a number that JSON can represent"
    assert send(tmp_path / "a", tmp_path / "b", key="customer", format="parquet").known == 2


def test_parquet_with_nanoseconds_texts_in_lists_and_keys_that_are_there_twice(send, tmp_path):
    import pyarrow
    from pyarrow import parquet

    nanos, utc = [1_767_225_600_123_456_000, -1], pyarrow.timestamp("ns", tz="UTC")
    rows = {
        "at": pyarrow.array(nanos, pyarrow.timestamp("ns")), "z": pyarrow.array(nanos, utc),
        "list": [["x"], [None]], "_metadata": [1, 2],
    }  # fmt: skip
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    maps = pyarrow.array([[("x", 1.5), ("x", 2.5)], [("x", 1.5)]], pyarrow.map_(pyarrow.string(), pyarrow.float64()))
    parquet.write_table(pyarrow.table({"map": maps}), tmp_path / "b.parquet")

    done = send(tmp_path / "a.parquet", tmp_path / "b.parquet")

    assert [data for _, data in stored()] == [
        {"at": "2026-01-01T00:00:00.123456", "z": "2026-01-01T00:00:00.123456Z", "list": ["x"], "_metadata": 1},
        {"at": "1969-12-31T23:59:59.999999999", "z": "1969-12-31T23:59:59.999999999Z", "list": [None], "_metadata": 2},
        {"map": {"x": Decimal("1.5")}},
    ]  # fmt: skip
    assert json.loads(Path(done.aside).read_text())["why"] == "map: a key is there more than once"

    lists = pyarrow.array([nanos], pyarrow.list_(pyarrow.timestamp("ns")))
    parquet.write_table(pyarrow.table({"list": lists}), tmp_path / "c.parquet")
    with pytest.raises(SparkUnavailable, match="NANOS"):
        send(tmp_path / "c.parquet")
    with pytest.raises(InvalidOption, match="cannot be read as Parquet"):
        send(written(tmp_path, "d.parquet", "n\n1\n"))


def test_rows_for_which_the_queue_has_no_place_are_set_aside_and_sent_when_it_has(send, tmp_path):
    file = written(tmp_path, "day.csv", 'customer,n\nanna,"1\n1"\nanna,2\nben,3\nbad\n')

    tried = send(file, key="customer", dry_run=True)
    done = send(file, key="customer", again=True)

    assert (done.rows, done.sent, done.known, done.bad) == (4, 2, 0, 2)
    assert (tried.rows, tried.new, tried.known, tried.bad) == (4, 2, 0, 2)
    assert [job["singleton_key"] for job in tried.first] == ["anna", "ben"]
    aside = [json.loads(line) for line in Path(done.aside).read_text().splitlines()]
    assert [(row["row"], row["line"]) for row in aside] == [(2, 4), (4, 6)]
    assert aside[0]["why"] == "key: 'work' holds a job with this key that has not ended"
    assert not StagedJob.objects.exists()

    services.cancel(Job.objects.get(singleton_key="anna"))
    done = send(file, key="customer")
    assert (done.sent, done.known, done.bad) == (1, 2, 1)
    assert [data for key, data in stored() if key == "anna"] == [{"n": "1\n1"}, {"n": "2"}]


# ------------------------------------------------------------------------------------------------------ ids of the user


def test_ids_of_the_user_say_which_row_it_is(send, tmp_path):
    ids = [str(uuid4()) for _ in range(3)]
    file = written(tmp_path, "day.csv", f"id,n\n{ids[0]},1\n{ids[1].upper()},2\n{ids[0]},3\nno,4\n")

    done = send(file, id="id")

    assert (done.sent, done.bad) == (2, 2)
    aside = [json.loads(line) for line in Path(done.aside).read_text().splitlines()]
    assert [(row["line"], row["why"]) for row in aside] == [
        (4, "id: another row has it too"),
        (5, "id: not a UUID: no"),
    ]
    assert {(str(job.pk), job.data["n"]) for job in Job.objects.all()} == {(ids[0], "1"), (ids[1], "2")}

    services.send("work", id=ids[2])
    written(tmp_path, "other.csv", f"id,n\n{ids[1]},7\n{ids[2]},8\n{uuid4()},9\n")
    assert send(tmp_path / "other.csv", id="id", dry_run=True).new == 1
    done = send(tmp_path / "other.csv", id="id", queue="other")
    assert (done.sent, done.known) == (1, 2)


# ------------------------------------------------------------------------------------------------------------ dry runs


def test_a_dry_run_says_what_is_new_known_and_bad_and_shows_the_first_jobs(send, tmp_path):
    file = written(tmp_path, "day.jsonl", '{"k": "a", "n": 1.50, "p": 3}\n')
    send(file, key="k", priority="p")
    written(tmp_path, "day.jsonl", '{"k": "a", "n": 1.50, "p": 3}\n{"k": "b", "n": 2, "p": "x"}\n{"k": "c", "n": 3}\n')

    done = send(file, key="k", priority="p", dry_run=True)

    assert (done.rows, done.new, done.known, done.bad, done.sent) == (3, 1, 1, 1, 0)
    assert done.first == [{"singleton_key": "c", "data": {"n": 3}}], "those that would be sent"
    done = send(file, key="k", priority="p", dry_run=True, again=True, queue="other")
    assert done.first == [
        {"singleton_key": "a", "priority": 3, "data": {"n": 1.5}},
        {"singleton_key": "c", "data": {"n": 3}},
    ]
    assert (Job.objects.count(), SentRow.objects.count(), StagedJob.objects.count()) == (1, 1, 0)
    assert not JobWrite.objects.filter(jobs=1, committed_at__isnull=True).exists()


def test_the_command_says_what_could_not_be_told_apart(spark, tmp_path):
    file = written(tmp_path, "day.csv", "n\n1\n2\n")
    call = ("bulk_send", file, "--queue", "work", "--aside", tmp_path / "bad")
    assert jobs(*call).out == "Sent 2 jobs.\n"

    said = jobs(*call)
    assert said.code == 0
    assert said.out.splitlines()[0] == "Sent 0 jobs."
    assert said.out.splitlines()[1].startswith("2 rows had been sent before")
    assert jobs(*call, "--batch", "b").out == "Sent 2 jobs.\n"
    assert jobs(*call, "--again").out == "Sent 2 jobs.\n"
    tried = jobs(*call, "--batch", "c", "--dry-run").out.splitlines()
    assert tried == ["Would send 2 jobs.", "The first jobs:", '  {"data": {"n": "1"}}', '  {"data": {"n": "2"}}']
    assert not (tmp_path / "bad").exists()


# --------------------------------------------------------------------------------------------------------- bad options


def test_what_cannot_be_read_or_written_is_said_before_spark_starts(tmp_path):
    from django_jobqueue.pipeline import Mapping, bulk_send

    file = written(tmp_path, "day.csv", "n\n1\n")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("cannot be read: No such file", {"files": [tmp_path / "no.csv"]}),
        ("patterns match only local files", {"files": ["s3://bucket/*.csv"]}),
        ("no file matches", {"files": [tmp_path / "no*.csv"]}),
        ("holds no file", {"files": [tmp_path / "empty"], "format": "csv"}),
        ("is a link", {"aside": tmp_path / "link"}),
        ("cannot be written", {"aside": file / "below"}),
        ("is one of the files to send", {"aside": file}),
        ("is not a regular file", {"aside": tmp_path / "pipe"}),
        ("is not a regular file", {"files": [tmp_path / "pipe"], "format": "csv"}),
        ("cannot read text files in the encoding", {"encoding": "undefined"}),
        ("cannot read text files in the encoding", {"encoding": "idna"}),
        ("expected one character", {"delimiter": "ab"}),
        ("cannot read text files in the encoding", {"encoding": "utf-9"}),
        ("expected csv, json or parquet", {"format": "xml"}),
        ("name: has 300 characters", {"mapping": Mapping(name="n" * 300)}),
        ("an id cannot be sent twice", {"again": True, "mapping": Mapping(id="n")}),
        ("there is no column 'k'", {"mapping": Mapping(key="k")}),
    ]
    for problem, options in cases:
        given = {"files": [file], "aside": tmp_path / "aside", **options}
        files = [str(one) for one in given.pop("files")]
        with pytest.raises(InvalidOption, match=problem):
            bulk_send(files, queue="work", master="local[1]", **given)
    assert file.read_text() == "n\n1\n"
    assert (tmp_path / "pipe").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert Job.objects.count() == 0


# --------------------------------------------------------------------------------------- over several calls and queues

cells = st.sampled_from(["", "1", "01", 'say "hi"', "two\nlines", "a,b", "ä", " "])
tables = st.lists(st.tuples(cells, cells, cells), max_size=5)


@settings(deadline=None, max_examples=5, suppress_health_check=list(HealthCheck))
@given(
    versions=st.lists(
        st.tuples(tables, st.permutations(["k", "m", "n"]), st.sampled_from(["work", "other"])), max_size=4
    )
)
def test_over_several_calls_each_row_of_each_version_is_sent_once(send, tmp_path, versions):
    Job.objects.all().delete()
    SentRow.objects.all().delete()
    expected: Counter[str] = Counter()  # the most that any version had of a row
    for table, header, queue in versions:
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        writer.writerows([header, *table])
        written(tmp_path, "day.csv", out.getvalue())
        rows = Counter(json.dumps([queue, list(zip(header, row, strict=True))]) for row in table)

        done = send(tmp_path / "day.csv", group_key="k", queue=queue)

        new = rows - expected
        assert (done.rows, done.sent, done.known, done.bad) == (
            len(table), new.total(), len(table) - new.total(), 0,
        )  # fmt: skip
        expected |= rows
    found: Counter[str] = Counter()
    for queue in ("work", "other"):
        for key, data in stored(queue):
            found[json.dumps([queue, sorted({**data, "k": key}.items())])] += 1
    meant: Counter[str] = Counter()
    for row, number in expected.items():
        queue, pairs = json.loads(row)
        meant[json.dumps([queue, sorted(map(tuple, pairs))])] += number
    assert found == meant
