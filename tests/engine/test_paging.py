"""Jobs in the order of their sends, a bounded piece at a time."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection

from django_jobqueue import counting
from django_jobqueue.counting import Count
from django_jobqueue.engine import paging
from django_jobqueue.engine.paging import count, first_number, last_number, look
from django_jobqueue.models import Job
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


def numbered(queue, *numbers, **columns):
    """Jobs with these numbers, as if the others of the sequence were long gone."""
    jobs = [Job(id=uuid4(), queue=queue, seq=n, position=n, policy="standard", **columns) for n in numbers]
    Job.objects.bulk_create(jobs)
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('jobqueue_job_seq', %s)", [max(numbers)])


def seqs(piece):
    return [job.seq for job in piece.jobs]


@pytest.fixture
def few(monkeypatch):
    """Small windows, so that a few jobs are many."""
    monkeypatch.setattr(paging, "NARROW", 4)
    monkeypatch.setattr(paging, "MOST", 40)
    monkeypatch.setattr(paging, "COUNTED", 40)
    monkeypatch.setattr(paging, "CHEAP", 0)  # nothing is asked for directly


def test_the_newest_come_first_and_the_rest_page_by_page(queue, few):
    numbered(queue, *range(1, 24))

    first = look(Job.objects.all(), 10)
    second = look(Job.objects.all(), 10, before=first.place)
    third = look(Job.objects.all(), 10, before=second.place)

    assert seqs(first) == list(range(23, 13, -1))
    assert seqs(second) == list(range(13, 3, -1))
    assert (seqs(third), third.more) == ([3, 2, 1], False)


def test_upwards_the_oldest_come_first(queue, few):
    numbered(queue, *range(1, 24))

    piece = look(Job.objects.all(), 10, after=5)

    assert (seqs(piece), piece.more) == (list(range(6, 16)), True)
    assert seqs(look(Job.objects.all(), 10, after=15)) == list(range(16, 24))


def test_numbers_of_jobs_long_gone_cost_nothing(queue, few):
    numbered(queue, 5, 7, 1_000_000, 1_000_001)

    piece = look(Job.objects.all(), 10)

    assert (seqs(piece), piece.more) == ([1_000_001, 1_000_000, 7, 5], False)
    assert seqs(look(Job.objects.all(), 10, after=6)) == [7, 1_000_000, 1_000_001]
    assert first_number("default") < 5
    assert last_number("default") == 1_000_001


def test_a_rare_job_is_looked_for_only_so_far_and_then_further(queue, few):
    numbered(queue, *range(2, 101), name="often")
    numbered(queue, 1, name="rare")
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('jobqueue_job_seq', 100)")
    rare = Job.objects.filter(name="rare")

    piece = look(rare, 10, most=40)

    assert (seqs(piece), piece.more, piece.looked) == ([], True, 40)
    assert piece.place == 61
    found = look(rare, 10, before=look(rare, 10, before=61, most=40).place, most=40)
    assert (seqs(found), found.more) == ([1], False)


def test_what_an_index_knows_is_asked_for_directly(untouched_table, queue):
    numbered(queue, *range(1, 200), state="created")
    failed = JobFactory(queue=queue, state="failed")
    numbered(queue, *range(1_000, 1_200), state="created")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobqueue_job")

    piece = look(Job.objects.in_state("failed"), 10, most=1)

    assert (seqs(piece), piece.looked, piece.more) == ([failed.seq], 0, False)


@pytest.mark.parametrize("number", (0, 1, 39, 40, 41))
def test_up_to_many_are_counted_exactly(queue, few, monkeypatch, number):
    monkeypatch.setattr(paging, "MANY", 40)
    monkeypatch.setattr(counting, "MANY", 40)
    if number:
        numbered(queue, *range(1, number + 1))

    found = count(Job.objects.all())

    assert (found.number, found.is_capped, found.is_exact) == (number, number > 40, number <= 40)


def test_what_no_index_knows_is_counted_among_the_newest(queue, few):
    numbered(queue, *range(1, 101), name="a")

    assert count(Job.objects.filter(name="a")) == Count(40, 40)
    assert count(Job.objects.filter(name="a", seq__gt=90)) == Count(10, 40)


def test_in_a_small_table_the_count_is_exact(queue, few):
    numbered(queue, 1, 2, 3, name="a")

    assert count(Job.objects.filter(name="a")).is_exact


def test_an_empty_table_has_nothing(db):
    piece = look(Job.objects.all(), 10)

    assert (piece.jobs, piece.more) == ([], False)
    assert look(Job.objects.all(), 10, after=0).jobs == []


def test_the_callers_transaction_is_planned_as_before(queue):
    numbered(queue, 1, 2, 3)

    look(Job.objects.filter(name="a"), 10)
    count(Job.objects.filter(name="a"))

    with connection.cursor() as cursor:
        for setting, value in (("enable_indexscan", "on"), ("enable_seqscan", "on"), ("statement_timeout", "0")):
            cursor.execute("SELECT current_setting(%s)", [setting])
            assert cursor.fetchone() == (value,)
