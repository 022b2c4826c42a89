"""A worker beside ``manage.py runserver``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from django_jobqueue.runserver import AUTORELOAD, wants_worker
from django_jobqueue.states import JobState
from tests.past import reread
from tests.waiting import until

from .conftest import ends, runs, send
from .runner import ROOT, children_of, environment, is_alive
from .test_stopped import free_port

SLOW = 120.0  # on a busy machine
SERVE = ("-m", "django", "runserver")


def descendants(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *descendants(child))]


@pytest.fixture
def server(queues, tmp_path):
    """``runserver`` in a session of its own, as in a terminal."""
    log_path = tmp_path / "server.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *SERVE, str(free_port())],
            cwd=ROOT,
            env={**environment(tmp_path, {"RUNSERVER_WORKER": True}), "FAULTS_DEBUG": "true"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    family = [process.pid, *descendants(process.pid)]
    for pid in family:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    print(log_path.read_text()[-4000:])


@pytest.mark.django_db(transaction=True)
def test_a_worker_starts_with_the_server_restarts_with_it_and_ends_with_it(server, history):
    job = send("work", {"gate": "never"})
    runs(history, job, seconds=SLOW)
    (serving,) = children_of(server.pid)

    (ROOT / "tests/faults/app/jobs.py").touch()  # only the worker needs it
    runs(history, job, times=2, seconds=SLOW)
    first, second = (run.pid for run in history.runs(job))
    assert not is_alive(serving)
    assert not is_alive(first)
    assert reread(job).retry_count == 0

    family = descendants(server.pid)
    assert second in family
    os.killpg(server.pid, signal.SIGINT)  # what a terminal does at Ctrl-C

    until(lambda: not any(is_alive(pid) for pid in family), "the server and its worker have ended", SLOW)
    ends(job, JobState.RETRY, SLOW)


@pytest.mark.django_db(transaction=True)
def test_a_worker_ends_although_the_server_is_killed(server, history):
    job = send("work", {"gate": "never"})
    runs(history, job, seconds=SLOW)
    family = descendants(server.pid)

    for pid in (server.pid, *children_of(server.pid)):
        os.kill(pid, signal.SIGKILL)

    until(lambda: not any(is_alive(pid) for pid in family), "the worker has ended", SLOW)


@pytest.mark.parametrize(
    ("arguments", "reloads", "debug", "asked", "wanted"),
    (
        (["runserver", "8000"], "true", True, True, True),
        (["runserver", "--noreload"], "", True, True, True),
        (["runserver"], "", True, True, False),  # it only watches the files
        (["runserver"], "true", False, True, False),
        (["runserver"], "true", True, False, False),
        (["runserver"], "true", True, "yes", False),  # which a system check refuses
        (["runjobs"], "true", True, True, False),
        (["test", "runserver"], "true", True, True, False),
        ([], "true", True, True, False),
    ),
)
def test_only_the_process_that_serves_starts_a_worker(settings, monkeypatch, arguments, reloads, debug, asked, wanted):
    settings.DEBUG, settings.JOBQUEUE = debug, {"RUNSERVER_WORKER": asked}
    monkeypatch.setattr(sys, "argv", ["manage.py", *arguments])
    monkeypatch.setenv(AUTORELOAD, reloads)

    assert wants_worker() is wanted


@pytest.mark.parametrize("wrong", (None, [], "RUNSERVER_WORKER"))
def test_settings_that_are_no_dict_do_not_end_the_server(settings, monkeypatch, wrong):
    settings.DEBUG, settings.JOBQUEUE = True, wrong
    monkeypatch.setattr(sys, "argv", ["manage.py", "runserver", "--noreload"])

    assert not wants_worker()


def test_django_still_marks_the_process_that_serves():
    from django.utils.autoreload import DJANGO_AUTORELOAD_ENV

    assert AUTORELOAD == DJANGO_AUTORELOAD_ENV
