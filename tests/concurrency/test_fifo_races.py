"""Strict order per key, raced: nothing is lost, nothing overlaps, nothing overtakes."""

from __future__ import annotations

import pytest

from .race_lab import RACE_FACTOR, Plan

pytestmark = [pytest.mark.concurrency, pytest.mark.django_db(transaction=True)]

JOBS = 2_000 * RACE_FACTOR
IN_ONE_KEY = 500 * RACE_FACTOR  # one after another, which takes longer


@pytest.mark.parametrize("keys", (1, 3, 20, 200))
def test_order_and_no_loss_under_races(fifo_queue, laboratory, keys):  # R001 R002 R003 R009 R010 R014 R015 R016 I1 I2
    laboratory(Plan(queue=fifo_queue.name, keys=keys, jobs=IN_ONE_KEY if keys == 1 else JOBS, seed=keys))
