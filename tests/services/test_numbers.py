"""A job is found by its number, which people see everywhere, without an index that every send would pay for."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection, connections

from django_jobqueue import services
from django_jobqueue.engine import numbers, sql
from django_jobqueue.engine.databases import rows
from django_jobqueue.exceptions import InvalidOption, JobNotFound
from django_jobqueue.identifiers import as_number
from django_jobqueue.models import Job
from tests.test_plans import explained

from .lives import sent

LATE = 10_000  # jobs, five times as many as are read near the place of a number


@pytest.mark.django_db
def test_a_job_is_found_by_its_number_as_people_write_it(queue):
    job, _ = sent(queue), sent(queue)

    for written in (job.seq, str(job.seq), f"#{job.seq}", f" #{job.seq} ", job.pk, str(job.pk)):
        assert services.find_job(written) == job


@pytest.mark.parametrize("text", ("", "#", "##1", "1.0", "-1", "1e3", "²", "1" * 20, "1 2", True, None, 0, -1, 2**63))
def test_what_is_no_number_is_not_taken_for_one(text):
    assert as_number(text) is None


@pytest.mark.django_db
@pytest.mark.parametrize("id", ("nonsense", "##1", -1, None))
def test_what_is_neither_a_number_nor_an_id_is_refused(id):
    with pytest.raises(InvalidOption, match="expected a UUID"):
        services.find_job(id)


@pytest.mark.django_db
def test_a_number_that_no_job_has_is_not_found(queue):
    job = sent(queue)

    for number in (job.seq + 1, 2**63 - 1):
        with pytest.raises(JobNotFound, match=rf"^No job has the number {number}\. It may") as caught:
            services.find_job(number)
        assert caught.value.number == number


@pytest.fixture
def many(untouched_table, queue):
    """Jobs in the order of their ids, one each millisecond; some have ids that are not in this order."""
    services.create_queue("apart", partition=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobqueue_job (id, queue_id, data) SELECT "
            "CASE WHEN i %% 50 = 0 THEN gen_random_uuid() ELSE (lpad(to_hex(1700000000000 + i), 12, '0') || "
            "'7000800000000000' || lpad(to_hex(i), 4, '0'))::uuid END, "
            "CASE i %% 3 WHEN 0 THEN 'apart' ELSE %s END, '{}' FROM generate_series(1, %s) i",
            [queue.name, LATE],
        )
    sent(queue, id="00ff0000-0000-4000-8000-000000000000")  # random, and before all others in the index
    return list(Job.objects.order_by("seq").values_list("seq", "pk"))


@pytest.mark.django_db
def test_the_place_of_a_number_is_found_along_the_ids(many):
    for place in (0, 1, 2_500, LATE // 2, LATE - 3, LATE - 2):
        seq, id = many[place]
        with explained() as plans:
            near = rows("default", sql.inspect.WITH_NUMBER, {"number": seq, "near": 1})
            assert services.find_job(seq).pk == id
        assert near == [(id,)]
        assert not plans.sequential
        assert "jobqueue_job_ranges" not in plans.indexes


@pytest.mark.django_db
def test_ids_that_are_not_in_order_are_found_by_the_index_of_ranges(many, queue):
    foreign = many[49]
    early = sent(queue, id=uuid4()), sent(queue, id="01000000-0000-7000-8000-000000000000")

    assert services.find_job(foreign[0]).pk == foreign[1]
    for job in early:
        assert services.find_job(job.seq) == job
    with explained() as plans:
        services.find_job(early[1].seq)
    assert "jobqueue_job_ranges" in plans.indexes
    assert not plans.sequential


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_is_given_up(queue, monkeypatch):
    job = sent(queue)
    monkeypatch.setattr(numbers, "MOST_MS", 20)
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("LOCK TABLE jobqueue_job")
        with pytest.raises(InvalidOption, match=f"the job with the number {job.seq} was not found in time"):
            services.find_job(job.seq)
    finally:
        other.close()
    assert services.find_job(job.seq) == job
