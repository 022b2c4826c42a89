"""Races with everything at once: delays, retries, cancels, skips, deletes, pauses, tags, strict callers."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.policies import DelayedHead

from .race_lab import RACE_FACTOR, Plan

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

JOBS = 600 * RACE_FACTOR


def mixed(queue: Any, keys: int, **options: Any) -> Plan:
    return Plan(queue=queue.name, keys=keys, jobs=JOBS, chaos=True, tags=True, retry_limit=1, **options)


@pytest.mark.parametrize("keys", (3, 40))
@pytest.mark.parametrize("delayed_head", DelayedHead)
def test_an_operator_without_mercy_breaks_no_law(fifo_queue, laboratory, delayed_head, keys):  # R002 R003 I1 I2 B18
    services.update_queue(fifo_queue.name, delayed_head=delayed_head)

    laboratory(mixed(fifo_queue, keys, delays=0.15, blocks=delayed_head == DelayedHead.BLOCK, seed=keys))


def test_a_delayed_head_that_changes_all_the_time_breaks_no_law(fifo_queue, laboratory):  # B18 I2
    laboratory(mixed(fifo_queue, 5, delays=0.3, toggles=True, seed=5))


def test_a_queue_that_skips_what_is_exhausted_breaks_no_law(fifo_queue, laboratory):  # B23 I2
    services.update_queue(fifo_queue.name, on_exhausted="skip")

    laboratory(mixed(fifo_queue, 10, fails=0.3, skips=True, seed=6))


@pytest.mark.parametrize("isolation", ("REPEATABLE READ", "SERIALIZABLE"))
def test_strict_callers_break_no_law(fifo_queue, laboratory, isolation):  # R002 I1 I2 F27
    laboratory(mixed(fifo_queue, 10, delays=0.1, send_isolation=isolation, finish_isolation=isolation, seed=7))


def test_callers_with_open_transactions_break_no_law(fifo_queue, laboratory):  # R002 I1 I2
    laboratory(mixed(fifo_queue, 10, finish_isolation="READ COMMITTED", seed=8))


def test_a_queue_with_a_part_of_the_table_of_its_own_breaks_no_law(partitioned_fifo_queue, laboratory):  # R029
    laboratory(mixed(partitioned_fifo_queue, 10, delays=0.1, seed=9))


@pytest.mark.parametrize("name", ("singleton_queue", "stately_queue"))
@pytest.mark.parametrize("isolation", ("", "REPEATABLE READ"))
def test_never_do_two_jobs_of_a_key_run_at_once(request, laboratory, name, isolation):  # R080 R081 I1
    queue = request.getfixturevalue(name)

    laboratory(mixed(queue, 12, delays=0.1, ordered=False, finish_isolation=isolation, seed=11))
