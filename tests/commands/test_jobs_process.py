"""``manage.py jobs`` as a process: exit codes, one JSON document, and confirmations."""

from __future__ import annotations

import os
import pty

import pytest

from django_jobqueue import services
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Operation
from tests.services.lives import sent

from .calling import Said, run

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_exit_code_says_how_it_went(queue):
    job = sent(queue)

    fine = run("list", "--json")
    refused = run("retry", job.pk, "--json", "--settings", "tests.settings", "--no-color")
    wrong = run("list", "--state", "sleeping", "--json")
    missing = run("show", uuid7(), "--json")

    assert (fine.code, fine.json["jobs"][0]["id"]) == (0, str(job.pk))
    assert (refused.code, refused.json["refused"]) == (1, {str(job.pk): "it is created"})
    assert (wrong.code, wrong.json["error"]["code"]) == (2, "invalid_option")
    assert (missing.code, missing.json["error"]["code"]) == (3, "job_not_found")
    assert fine.error == refused.error == ""
    for said in (wrong, missing):
        assert said.error.startswith("CommandError: ")
        assert len(said.error.splitlines()) == 1, "one sentence, never a traceback"


def test_a_database_that_does_not_answer_is_reported_in_a_sentence(queue):
    said = run("stats", "--json", JOBQUEUE_TEST_DSN="host=127.0.0.1 port=1 user=missing dbname=missing")

    assert (said.code, said.json["error"]["code"]) == (4, "database")
    assert "Traceback" not in said.error


def test_wrong_usage_has_the_exit_code_of_every_command(queue):
    said = run("purge")

    assert said.code == 2
    assert "QUEUE" in said.error


def test_data_goes_in_by_a_pipe(queue):
    said = run("send", queue.name, "-", "--json", input='{"order": "ü"}')

    assert said.code == 0
    assert Job.objects.get(pk=said.json["id"]).data == {"order": "ü"}


def on_a_terminal(*args: object, answer: str) -> Said:
    """The same with a terminal as its standard input, into which the answer is typed."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        return run(*args, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def test_on_a_terminal_many_jobs_go_only_after_a_yes(queue):
    services.send_many(queue.name, [{}] * 3)

    said = on_a_terminal("cancel", "--queue", queue.name, answer="n")
    assert (said.code, said.error) == (1, "Cancel 3 jobs? [y/N] ")
    assert Job.objects.filter(state="created").count() == 3

    said = on_a_terminal("cancel", "--queue", queue.name, "--json", answer="y")
    assert (said.code, said.error, said.json["number"]) == (0, "Cancel 3 jobs? [y/N] ", 3)
    assert Job.objects.filter(state="cancelled").count() == 3
    assert Operation.objects.get().moved == 3

    said = on_a_terminal("purge", queue.name, "--yes", answer="n")
    assert (said.code, said.error) == (0, "")
    assert not Job.objects.exists()
