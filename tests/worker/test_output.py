"""What ``runjobs`` writes in a project without logging, on a terminal and elsewhere, and its connections' names."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_jobqueue import __version__, services
from django_jobqueue.models import Job, QueueMinute
from django_jobqueue.worker.console import banner
from django_jobqueue.worker.options import WorkerOptions
from tests.faults.runner import database_dsn
from tests.past import reread

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "howto" / "logging.md"
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
HANDLERS = """
from django.db import connection
from django_jobqueue import job
from django_jobqueue.handlers import Snooze


@job(queue="talk")
def add(a, b):
    return a + b


@job(queue="talk", retry_limit=1, retry_delay=3600)
def ship(order):
    raise ValueError(f"order {order} is gone")


@job(queue="talk")
def snooze():
    raise Snooze(3600)


@job(queue="talk-lanes", retry_limit=0)
def laned():
    raise LookupError("nothing there")


@job(queue="talk")
def names():
    with connection.cursor() as cursor:
        cursor.execute("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
        return sorted(name for name, in cursor.fetchall())
"""
Project = Callable[..., "Output"]


class Output:
    def __init__(self, code: int, out: str, log: str) -> None:
        self.code, self.out, self.log = code, out, log

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without logging, and a function that drains its queues: ``project("-v", "0", settings="…")``."""
    services.create_queue("talk")
    services.create_fifo_queue("talk-lanes")
    services.create_queue("talk-other")
    (tmp_path / "talkshop").mkdir()
    (tmp_path / "talkshop" / "__init__.py").touch()
    (tmp_path / "talkshop" / "jobs.py").write_text(HANDLERS)

    def drain(*arguments: str, settings: str = "", on_terminal: bool = False, **environment: str) -> Output:
        (tmp_path / "talk_settings.py").write_text(
            "from tests.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'talkshop']\n" + settings
        )
        master, slave = pty.openpty() if on_terminal else (0, subprocess.PIPE)
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "runjobs", "--drain", "--name", "talker", "--no-schedules", *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "talk_settings",
                "JOBQUEUE_TEST_DSN": database_dsn(),
                "PYTHONPATH": f"{ROOT}:{tmp_path}",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
        )
        if not on_terminal:
            out, log = process.communicate(timeout=120)
            return Output(process.returncode, out, log)
        os.close(slave)
        shown = b""
        with suppress(OSError):  # the end of a terminal
            while chunk := os.read(master, 65_536):
                shown += chunk
        os.close(master)
        return Output(process.wait(120), process.communicate()[0], shown.decode())

    return drain


def send(name: str, data: Any = None, queue: str = "talk", **options: Any) -> Job:
    options = {"retry_limit": 1, "retry_delay": 3600, **options}
    job: Job = services.send(queue, data, name=f"talkshop.jobs.{name}", **options)
    return job


def test_a_worker_says_what_it_is_what_it_ran_and_what_is_left(project):
    added = send("add", {"a": 1, "b": 2})
    shipped = send("ship", {"order": 7})
    send("snooze")
    blocker, _ = (send("laned", queue="talk-lanes", singleton_key="finn", retry_limit=0) for _ in range(2))
    send("add", {"a": 1, "b": 2}, delay=86_400)
    services.send("talk-other", 1)

    output = project()

    assert output.code == 0
    first, *rest = output.lines
    assert first.startswith(f"django_jobqueue {__version__} (Django ")
    assert first.endswith("worker talker")
    text = "\n".join(rest)
    assert re.search(r"database +default: \S+ on ", text)
    assert re.search(r"processes +1 x 8 threads", text)
    assert re.search(r"talk: talkshop\.jobs\.add, .*talkshop\.jobs\.snooze", text)
    assert "talk-lanes: talkshop.jobs.laned" in text
    assert "Ctrl-C" in text
    assert re.search(
        rf"INFO +job completed: talk (#\d+|{added.pk}) talkshop\.jobs\.add attempt 1(/\d)? in \d+\.\d+ m?s\n",
        output.log,
    )
    number = reread(shipped).seq
    assert (
        f"WARNING job failed: talk #{number} talkshop.jobs.ship attempt 1/2: ValueError: order 7 is gone" in output.log
    )
    assert 'raise ValueError(f"order {order} is gone")\nValueError: order 7 is gone\n' in output.log
    assert f"ERROR   job failed for good: talk-lanes #{reread(blocker).seq} " in output.log
    assert "INFO    job snoozed: talk " in output.log
    assert "worker stopped: talker, jobs 1 completed, 1 failed, 1 retried, 1 snoozed, in " in output.log
    assert re.fullmatch(
        r"Jobs: 1 completed, 1 failed, 1 retried, 1 snoozed, in \S+ s\."
        r" 5 jobs are left: 3 not due before [\d: -]+, 1 behind a blocked key,"
        r" 1 in queues this worker does not serve\.",
        output.lines[-1],
    )
    # The figures of the admin do not wait for a worker that keeps running.
    counted = {row.queue_id: (row.sent, row.completed, row.failed) for row in QueueMinute.objects.all() if row.started}
    assert {queue: sum(numbers[1:]) for queue, numbers in counted.items()} == {"talk": 1, "talk-lanes": 1}


def test_without_verbosity_only_warnings_and_errors_are_written(project):
    send("add", {"a": 1, "b": 2})
    assert (quiet := project("-v", "0")).code == 0
    send("ship", {"order": 7})
    loud = project("-v", "0")

    assert (quiet.out, quiet.log) == ("", "")
    assert loud.out == ""
    assert "job failed: talk #" in loud.log
    assert "ValueError: order 7 is gone\n" in loud.log
    assert "INFO" not in loud.log


def test_the_last_state_is_drawn_on_a_terminal_and_counts_the_jobs_it_can_take(project):
    for _ in range(3):
        send("add", {"a": 1, "b": 2}, tags=["mine"])
    send("add", {"a": 1, "b": 2})
    send("nobody", tags=["mine"], delay=60)
    send("add", {"a": 1, "b": 2}, tags=["mine"], delay=60)
    services.send("talk-other", 1)

    output = project("--tags", "mine", on_terminal=True)

    assert output.code == 0
    bars = re.findall(r"\[[# ]{30}\] [\d,]+ of [\d,]+, \d+ failed", output.log)
    assert bars[-1] == f"[{'#' * 30}] 3 of 3, 0 failed"
    assert "1 without the tags of this worker" in output.lines[-1]
    assert "1 without a handler in this code" in output.lines[-1]


def test_what_is_told_at_the_start_is_not_written_into_the_bar(project):
    output = project("--exclude-queue", "talks", on_terminal=True)

    [told] = [line for line in output.log.splitlines() if "there is no such queue" in line]
    assert "[" not in told.replace("\x1b[", "")
    assert "0 of 0, 0 failed" in output.log


@pytest.mark.parametrize(
    ("known", "environment", "place"),
    (
        ({"HOST": "db", "PORT": "5433"}, {"PGHOST": "elsewhere", "PGPORT": "1"}, "db:5433"),
        ({"HOST": "", "PORT": ""}, {"PGHOST": "db", "PGPORT": "5433"}, "db:5433"),
        ({"HOST": "", "PORT": 5433}, {"PGHOST": "db"}, "db:5433"),
        ({"HOST": "", "PORT": ""}, {}, "a local socket"),
        ({"HOST": "", "PORT": "", "OPTIONS": {"service": "shops"}}, {"PGHOST": "db"}, "the service shops"),
    ),
)
def test_the_banner_names_the_server_that_libpq_takes(monkeypatch, known, environment, place):
    for name in ("PGHOST", "PGPORT", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, value in {"NAME": "shop", "OPTIONS": {}, **known}.items():
        monkeypatch.setitem(connections["default"].settings_dict, name, value)

    assert f"database   default: shop on {place}\n" in banner(WorkerOptions.build(name="here", using="default"))


def test_many_jobs_are_summed_up_and_failures_still_listed(project):
    jobs: list[services.Item] = [{"name": "talkshop.jobs.add", "data": {"a": n, "b": 1}} for n in range(400)]
    failing: services.Item = {"name": "talkshop.jobs.ship", "retry_limit": 1, "retry_delay": 3600}
    jobs += [{**failing, "data": {"order": n}} for n in range(60)]
    services.send_many("talk", jobs)

    log = project().log

    listed = log.count("job completed: ")
    assert listed <= 50
    summed = sum(int(number.replace(",", "")) for number in re.findall(r"jobs ended: ([\d,]+) completed", log))
    assert 400 - listed <= summed <= 400
    assert log.count("job failed: ") == 60
    assert "jobs 400 completed, 0 failed, 60 retried" in log


def test_every_connection_of_a_worker_says_whose_it_is(project):
    job = send("names", retry_limit=0)
    project("--processes", "2", PGAPPNAME="shop")

    names: list[str] = reread(job).output or []
    parts = {name.removeprefix("shop: runjobs talker ") for name in names if name.startswith("shop: runjobs talker ")}
    assert {"child 1", "child 2", "housekeeping heartbeat", "housekeeping recovery"} <= parts
    assert {"child 1 handler", "child 2 handler"} & parts
    assert {"child 1 listener", "child 2 listener"} & parts
    assert names.count("") + names.count("shop") <= 1  # the connection of this test


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_recipe_for_text_lists_only_failures(project):
    send("add", {"a": 1, "b": 2})
    send("ship", {"order": 7})

    log = project(settings=blocks("python")[0]).log

    assert "job completed" not in log
    assert re.search(r"^\S+ \S+ WARNING django_jobqueue\.worker: job failed: talk #", log, re.MULTILINE)
    assert log.count("job failed:") == 1


def test_the_recipe_for_json_writes_nothing_else(project, tmp_path):
    _, formatter, settings = blocks("python")
    (tmp_path / "shop_logs").mkdir()
    (tmp_path / "shop_logs" / "json_log.py").write_text(formatter)
    send("add", {"a": 1, "b": 2}, singleton_key="finn")
    shipped = send("ship", {"order": 7})

    output = project("-v", "0", settings=settings.replace("shop.json_log", "shop_logs.json_log"))

    lines = [json.loads(line) for line in output.log.splitlines()]
    (completed,) = [line for line in lines if line["message"].startswith("job completed")]
    (failed,) = [line for line in lines if line["message"].startswith("job failed")]
    assert (completed["handler"], completed["key"], completed["level"]) == ("talkshop.jobs.add", "finn", "INFO")
    assert completed["seconds"] >= 0
    assert failed["job"] == str(shipped.pk)
    assert failed["traceback"].endswith("ValueError: order 7 is gone")
    assert output.out == ""
    example = json.loads(next(text for text in blocks("text") if text.startswith("{")))
    assert list(example) == list(completed)
