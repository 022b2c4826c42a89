"""The claim written out is the one that the ORM would compose."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import transaction
from psycopg.sql import Literal

from django_jobqueue.engine import sql
from django_jobqueue.engine.candidates import Part
from django_jobqueue.engine.transactions import at
from django_jobqueue.models import Job
from django_jobqueue.partitions import DEFAULT

NONE_SKIPPED = "AND name <> ALL(NULL::text[])"


@pytest.mark.django_db
def test_the_candidates_of_a_claim_are_those_that_the_orm_composes(queue):
    jobs = Job.objects.in_queue(queue.name).in_part(DEFAULT).fetchable().in_order()
    with transaction.atomic():
        composed = str(jobs.select_for_update(skip_locked=True).values_list("id")[:7].query)
    written = at(DEFAULT, sql.fetch.CLAIM_FRONT) % Values(queue=queue.name, limit=7)

    assert clauses(written.replace(NONE_SKIPPED, "")) == clauses(composed)


@pytest.mark.django_db
@pytest.mark.parametrize("part", tuple(Part), ids=lambda part: part.name)
def test_the_candidates_of_lanes_are_those_that_the_orm_composes(queue, part):
    jobs = Job.objects.in_queue(queue.name).in_part(DEFAULT).filter(part.bounds((3, 40))).fetchable().in_order()
    with transaction.atomic():
        composed = str(jobs.select_for_update(skip_locked=True).values_list("id")[:7].query)
    values = Values(queue=queue.name, limit=7, priority=3, position=40)
    written = at(DEFAULT, part.value) % values

    written = written.replace("AND singleton_key <> ALL(NULL::text[])", "")
    assert clauses(written.replace(NONE_SKIPPED, "")) == clauses(composed)


class Values(dict[str, Any]):
    """Values for named parameters, as SQL; null for those that matter to no test."""

    def __init__(self, **values: Any) -> None:
        super().__init__({name: Literal(value).as_string() for name, value in values.items()})

    def __missing__(self, name: str) -> str:
        return "NULL"


def clauses(statement: str) -> tuple[str, set[str], str]:
    """The table, the conditions in any order, and all behind them, without quotes, parentheses and table names.

    The condition that the queue is not paused is left out: the ORM reads that before.
    """
    statement = re.sub(r"AND \(SELECT true FROM jobqueue_queue .*? LIMIT 1\)", "", statement, flags=re.S)
    text = re.sub(r"\bjobqueue_job(\.|\b)| ASC\b", "", re.sub(r"[\"'()]", "", statement))
    table, conditions, rest = re.findall(r"FROM (\S+)\s+WHERE (.*?)\s+ORDER BY (.*?SKIP LOCKED)", text, re.S)[0]
    return table, {" ".join(condition.split()) for condition in conditions.split(" AND ")}, " ".join(rest.split())
