"""What ``runjobs`` refuses before it starts anything."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError

from django_jobqueue import job, services
from django_jobqueue.management.commands.runjobs import Command
from django_jobqueue.worker.start_check import check_database

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
        (["--queue", "mails=0"], "--queue mails=0: expected a number from 1 to 1000 after =, got '0'"),
        (["--queue", "mails=four"], "got 'four'"),
        (["--queue", "mails="], "got ''"),
        (["--queue", "a=b=1"], "--queue a=b=1: expected a number"),
        (["--queue", "mails=2", "--queue", "mails=3"], "names 'mails' twice"),
        (["--queue", "mails=4", "--queue", "pdf", "--concurrency", "4"], "--concurrency 4 is too few.* at least 5"),
        (["--queue", "pdf", "--exclude-queue", "pdf"], "leaves none"),
        (["--exclude-queue", "no such name!"], "queue name"),
        (["--queue-order", "random"], "invalid choice: 'random'"),
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


def test_a_wrong_setting_is_told_as_by_check(queue, settings):
    settings.JOBQUEUE = {"PROCESES": 2}

    with pytest.raises(SystemCheckError, match=r"jobqueue\.E002\) JOBQUEUE\['PROCESES'\]"):
        call_command("runjobs", skip_checks=False)


def test_queues_and_numbers_may_be_mixed(queue):
    job(queue=queue.name, name="there")(lambda: None)
    arguments = parsed("--queue", "mails:eu=4", "--queue", queue.name, "--queue-order", "weighted")

    options = Command()._options(arguments)

    assert options.queues == ("mails:eu", queue.name)
    assert options.own == {"mails:eu": 4}
    assert (options.shared_threads, options.own_threads, options.queue_order) == (8, 4, "weighted")


def test_queues_that_are_excluded_lose_their_number(queue):
    job(queue=queue.name, name="there")(lambda: None)

    options = Command()._options(parsed("--queue", "pdf=4", "--queue", queue.name, "--exclude-queue", "pdf"))

    assert (options.queues, options.own, options.threads) == ((queue.name,), {}, 8)


def test_a_worker_says_which_queues_it_does_not_serve(queue):
    """A handler is declared for a dead-letter queue, and a name is misspelled."""
    services.create_queue("dead")
    services.update_queue(queue.name, dead_letter="dead")
    for name in (queue.name, "dead"):
        job(queue=name, name=name)(lambda: None)

    dead, missing = check_database(Command()._options(parsed("--exclude-queue", f"{queue.name}s"))).warnings

    assert "The queue 'dead' keeps dead letters and is not served, although a handler is declared for it" in dead
    assert missing == f"--exclude-queue {queue.name}s: there is no such queue. Did you mean {queue.name!r}?"


def test_a_drain_of_a_queue_that_does_not_exist_is_refused(queue):
    """It would wait for the queue, and a job of cron would never end."""
    job(queue=queue.name, name="there")(lambda: None)

    checked = check_database(Command()._options(parsed("--drain", "--queue", queue.name, "--queue", f"{queue.name}s")))

    assert checked.refusal == f"There is no queue named '{queue.name}s' to drain. Did you mean {queue.name!r}?"


def parsed(*flags: str) -> dict[str, Any]:
    return vars(Command().create_parser("manage.py", "runjobs").parse_args([*flags]))
