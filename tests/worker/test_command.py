"""What ``runjobs`` refuses before it starts anything."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from django_jobqueue import job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("flags", "text"),
    (
        (["--processes", "0"], "--processes must be a number of at least 1, not 0"),
        (["--concurrency", "0"], "--concurrency must be a number of at least 1, not 0"),
        (["--grace", "-1"], "--grace must be a number of at least 0, not -1"),
        # An unknown database, so that no worker is started if these are not refused.
        (["--grace", "nan", "--database", "nowhere"], "--grace must be a number of at least 0, not nan"),
        (["--grace", "inf", "--database", "nowhere"], "--grace must be a number of at least 0, not inf"),
        (["--max-jobs", "-1"], "--max-jobs must be a number of at least 0, not -1"),
        (["--queue", "no such name!"], "queue"),
        (["--tags", "a," + "x" * 300], "tag"),
        (["--processes", "many"], "invalid int value"),
    ),
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_a_flag_that_makes_no_sense_is_refused(queue, flags, text):
    job(queue=queue.name, name="there")(lambda: None)

    with pytest.raises(CommandError, match=text):
        call_command("runjobs", *flags)


def test_a_worker_that_could_do_nothing_is_told_where_handlers_are_looked_for(db):
    with pytest.raises(CommandError, match=r"No handlers were found.*jobs\.py or tasks\.py"):
        call_command("runjobs")
