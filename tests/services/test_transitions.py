"""The table of states is the law: what applies transitions refuses everything that it does not list."""

from __future__ import annotations

from itertools import product

import pytest

from django_jobqueue import services
from django_jobqueue.engine.transitions import Become, Change, move
from django_jobqueue.exceptions import InvalidTransition
from django_jobqueue.states import FOLLOWS, JobState

from .lives import job_in, now

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("state", "wanted"), tuple(product(sorted(JobState), sorted(JobState))))
def test_a_transition_happens_exactly_if_the_table_lists_it(queue, state, wanted):  # R267 R312
    job = job_in(state, queue)

    def moved() -> None:
        move("default", [job.pk], Become(Change(wanted)))

    if wanted in FOLLOWS[state]:
        moved()
        assert now(job).state == wanted
    else:
        with pytest.raises(InvalidTransition, match=f"{state}.*{wanted}"):
            moved()
        assert now(job).state == state


def test_a_late_report_of_an_expiry_ends_a_job_whose_worker_was_thought_lost(queue):  # B10
    services.send(queue.name, retry_limit=0)
    (job,) = services.fetch(queue.name, worker="w")
    services.mark_worker_unresponsive("w")

    services.fail(job, "too long", reason="expired")  # type: ignore[arg-type]

    assert now(job).state == "expired"
