"""Starting the real ``runjobs``, killing parts of it, and never leaving anything behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import connection
from psycopg.conninfo import make_conninfo

from django_jobqueue.models import Worker
from tests.waiting import PATIENCE, until

from .history import VARIABLE
from .settings import PREFIX

ROOT = Path(__file__).parent.parent.parent
FOLDER = "FAULTS_FOLDER"

# Seconds become tenths, with the same proportions as the defaults: beat < fence < unlocked < lost.
QUICK: dict[str, Any] = {
    "WORKER_HEARTBEAT_SECONDS": 0.2,
    "WORKER_FENCE_SECONDS": 1.5,
    "WORKER_UNLOCKED_SECONDS": 2.5,
    "WORKER_LOST_SECONDS": 4.0,
    "EXPIRE_GRACE_SECONDS": 0.5,
    "POLL_SECONDS": 0.1,
    "MONITOR_SECONDS": 1,
}


def database_dsn() -> str:
    """The test's own database, for other processes."""
    given = connection.settings_dict
    parts = {"dbname": given["NAME"], "host": given["HOST"], "port": given["PORT"], "user": given["USER"],
             "password": given["PASSWORD"], **given["OPTIONS"]}  # fmt: skip
    return make_conninfo(**{name: value for name, value in parts.items() if value})


def children_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def environment(folder: Path, settings: dict[str, Any], database: str | None = None) -> dict[str, str]:
    """The environment of a process with these settings."""
    given = {**QUICK, **settings}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
        **{PREFIX + name: json.dumps(value) for name, value in given.items()},
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "JOBQUEUE_TEST_DSN": make_conninfo(database_dsn(), dbname=database),
        VARIABLE: str(folder / "history.jsonl"),
        FOLDER: str(folder),
        "PYTHONUNBUFFERED": "1",
    }


class Runner:
    """One worker in a session of its own. Its log goes to a file."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        settings: dict[str, Any],
        number: int = 1,
        stdin: int = subprocess.DEVNULL,
        python: tuple[str, ...] = ("-m", "django"),
        database: str | None = None,
    ) -> None:
        self.name = f"w{number}"
        self.log_path = folder / f"{self.name}.log"
        self.environment = environment(folder, settings, database)
        if "--name" not in arguments:
            arguments = (*arguments, "--name", self.name)
        self.asked_name = arguments[arguments.index("--name") + 1]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *python, "runjobs", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=stdin,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # ------------------------------------------------------------------------------------------------ what is there

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def says(self, text: str, times: int = 1) -> bool:
        return self.log.count(text) >= times

    def rows(self) -> list[Worker]:
        """Its children that live, as the database knows them."""
        there = set(children_of(self.pid))
        mine = Worker.objects.filter(stopped_at=None, pid__in=there).order_by("name")
        return [row for row in mine if row.pid is not None and is_alive(row.pid)]

    def children(self) -> list[int]:
        return [row.pid for row in self.rows() if row.pid is not None]

    def housekeepers(self) -> list[int]:
        """The process that is no child: only once all children have their row. While it is replaced there is none."""
        rows = set(self.children())
        return [pid for pid in children_of(self.pid) if pid not in rows and is_alive(pid)]

    def housekeeper(self) -> int:
        (housekeeper,) = self.housekeepers()
        return housekeeper

    def ready(self, processes: int = 1, seconds: float = PATIENCE) -> Runner:
        """Wait until all children are registered."""

        def there() -> bool:
            assert self.process.poll() is None, f"the worker ended:\n{self.log}"
            return len(self.rows()) == processes and len(children_of(self.pid)) == processes + 1

        until(there, f"{processes} children are registered", seconds)
        return self

    # ------------------------------------------------------------------------------------------------ what is done

    def tell(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def kill_all(self, number: int = signal.SIGKILL) -> None:
        """All of its processes, and what they started: each leads a group of its own."""
        for group in (self.pid, *children_of(self.pid)):
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Wait for its end, and return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds:g} seconds") from None

    def stop(self) -> int:
        self.tell()
        return self.ended()

    def close(self) -> None:
        """Kill all processes of the worker."""
        family = {self.pid, *children_of(self.pid)}
        self.kill_all(signal.SIGCONT)
        self.kill_all(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        until(lambda: not any(is_alive(pid) for pid in family), "all processes of the worker are gone", 10)
