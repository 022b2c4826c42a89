"""Jobs from files: good rows are sent once, bad ones are set aside with the reason."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, QueueNotFound
from django_jobqueue.models import Job
from tests.commands.calling import jobs

CSV = """customer,n,euros,prio,tags
007,1,120,5,"red, blue"
ben,2,80,,
,3,15,1,
anna,4,9,high,
too,many,columns,1,a,b,c
007,5,33,0,red
"""


@pytest.fixture
def send(spark, tmp_path):
    def call(*files: Any, **options: Any):
        from django_jobqueue.pipeline import Mapping, bulk_send

        place = {name: options.pop(name) for name in ("queue", "dry_run", "format") if name in options}
        given = {"queue": "invoices", **place}
        aside = tmp_path / "aside.jsonl"
        return bulk_send([*map(str, files)], mapping=Mapping(**options), aside=aside, spark=spark, **given)

    return call


def bad(done) -> list[tuple[int, str]]:
    with open(done.aside) as lines:
        return [(line["row"], line["why"]) for line in map(json.loads, lines)]


def test_a_csv_with_good_and_bad_rows(send, tmp_path):
    services.create_fifo_queue("invoices")
    file = tmp_path / "orders.csv"
    file.write_text(CSV)
    wish = {"key": "customer", "priority": "prio", "tags": "tags", "name": "shop.invoice"}

    tried = send(file, dry_run=True, **wish)
    assert (tried.rows, tried.bad, tried.sent) == (6, 3, 0)
    assert not Job.objects.exists()

    done = send(file, **wish)

    assert (done.rows, done.sent, done.known, done.bad) == (6, 3, 0, 3)
    assert bad(done) == [
        (3, "key: empty"),
        (4, "priority: not int: high"),
        (5, "this line cannot be read as a row: it has 7 fields, the header has 5"),
    ]
    found = [(job.singleton_key, job.data, job.priority, job.tags) for job in Job.objects.order_by("seq")]
    assert found == [
        ("007", {"n": "1", "euros": "120"}, 5, ["red", "blue"]),
        ("ben", {"n": "2", "euros": "80"}, 0, []),
        ("007", {"n": "5", "euros": "33"}, 0, ["red"]),
    ]
    assert {job.name for job in Job.objects.all()} == {"shop.invoice"}

    again = send(file, **wish)
    assert (again.sent, again.known) == (0, 3)

    file.write_text(CSV + "carl,6,1,1,\n")
    more = send(file, **wish)
    assert (more.sent, more.known) == (1, 3)
    assert Job.objects.count() == 4


def test_json_lines_and_globs_keep_their_types_and_order(send, tmp_path):
    services.create_queue("invoices")
    (tmp_path / "a.jsonl").write_text('{"n": 1, "deep": {"x": [1.5, null]}}\n{"n": 2, "deep": null}\nnonsense\n')
    (tmp_path / "b.jsonl").write_text('{"n": 3}\n')

    done = send(tmp_path / "*.jsonl")

    assert (done.sent, bad(done)) == (3, [(3, "this line cannot be read as a row: Expecting value at character 1")])
    assert [job.data["n"] for job in Job.objects.order_by("seq") if job.data] == [1, 2, 3]
    assert Job.objects.order_by("seq")[0].data == {"n": 1, "deep": {"x": [1.5, None]}}


def test_parquet_with_ids_and_chosen_columns(send, tmp_path, spark):
    services.create_queue("invoices")
    ids = [str(uuid4()), "no id"]
    frame = spark.createDataFrame([(ids[0], 2, "x"), (ids[1], 1, "y")], "id string, n int, secret string")
    frame.write.parquet(str(tmp_path / "in.parquet"))

    done = send(tmp_path / "in.parquet", id="id", data=("n",), order_by="n")

    assert (done.sent, [why for _, why in bad(done)]) == (1, ["id: not a UUID: no id"])
    assert [(str(job.pk), job.data) for job in Job.objects.all()] == [(ids[0], {"n": 2})]


def test_what_cannot_be_is_said_before_anything_is_read(send, tmp_path):
    services.create_fifo_queue("invoices")
    file = tmp_path / "orders.csv"
    file.write_text(CSV)

    with pytest.raises(InvalidOption, match="which column is the key"):
        send(file)
    with pytest.raises(InvalidOption, match="there is no column 'kunde'"):
        send(file, key="kunde")
    with pytest.raises(InvalidOption, match="unknown for"):
        send(tmp_path / "orders.xls", key="customer")
    with pytest.raises(QueueNotFound):
        send(file, queue="nope")


def test_the_command(spark, tmp_path):
    services.create_fifo_queue("invoices")
    file = tmp_path / "orders.csv"
    file.write_text(CSV)

    said = jobs("bulk_send", file, "--queue", "invoices", "--key", "customer", "--aside", tmp_path / "bad.jsonl")

    assert said.code == 1
    assert said.out.splitlines() == ["Sent 4 jobs.", f"2 bad rows set aside in {tmp_path / 'bad.jsonl'}."]
