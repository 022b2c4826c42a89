"""Any sequence of verbs does what the reference says: Part C of the specification, tried at random.

``JOBQUEUE_MODEL_EXAMPLES=10000`` tries that many sequences, other ones each time; by default they are few and always
the same.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from .database import UNIT, InOneTransaction, InOwnTransactions
from .operating import Operating
from .reference import Rules
from .sides import STEPS, steps
from .working import Working

EXAMPLES = int(os.environ.get("JOBQUEUE_MODEL_EXAMPLES", "0"))  # in all; each test takes its share
SETTINGS = settings(
    max_examples=-(-EXAMPLES // 12) or 10,
    stateful_step_count=40,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


POLICIES = ["standard", "short", "singleton", "stately", "exclusive", "key_strict_fifo"]


class JobQueueMachine(Working, Operating):
    """An ordered queue, one of another policy, their dead-letter queue, and everything that can happen to them."""

    @rule(step=steps())
    def happens(self, step) -> None:
        name, arguments = step
        if STEPS[name].when(self):
            getattr(self, name)(**arguments)


@pytest.fixture(autouse=True)
def graces(settings) -> None:
    """The times of the reference, and no wake-ups: nothing sleeps here."""
    seconds = int(UNIT.total_seconds())
    settings.JOBQUEUE = {
        "NOTIFY": False,
        "WORKER_LOST_SECONDS": Rules.worker_lost_after * seconds,
        "STOP_GRACE_SECONDS": Rules.stop_grace * seconds,
        "CANCEL_GRACE_SECONDS": Rules.cancel_grace * seconds,
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.django_db
def test_verbs_inside_a_transaction_do_what_the_reference_says(policy):  # I1 I3 I4 I5 I6 I7 I8 G17
    try_sequences(policy, InOneTransaction)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.django_db(transaction=True)
def test_verbs_on_their_own_do_what_the_reference_says(policy):  # I1 I3 I4 I5 I6 I7 I8 G17
    try_sequences(policy, InOwnTransactions)


def try_sequences(policy: str, inside: type[InOneTransaction] | type[InOwnTransactions]) -> None:
    machine: Any = partial(JobQueueMachine, policy, inside)
    run_state_machine_as_test(machine, settings=SETTINGS)
