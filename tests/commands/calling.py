"""``manage.py jobs`` for tests: in this process, or in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management import CommandError, call_command
from django.db import connection
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).parent.parent.parent


class Said(NamedTuple):
    code: int
    out: str
    error: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def jobs(*args: object, **options: Any) -> Said:
    """Run the command in this process; returns its exit code and output. ``CommandError`` becomes an exit code too."""
    out = StringIO()
    try:
        call_command("jobs", *map(str, args), stdout=out, stderr=StringIO(), **{"no_color": True, **options})
    except CommandError as error:
        return Said(error.returncode, out.getvalue(), str(error))
    except SystemExit as left:
        return Said(int(str(left.code)), out.getvalue())
    return Said(0, out.getvalue())


def run(*args: object, input: str = "", stdin: int | None = None, **environment: str) -> Said:
    """Run the command in a process of its own, as an operator does; ``input`` is piped to it."""
    name = str(connection.settings_dict["NAME"])
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "JOBQUEUE_TEST_DSN": make_conninfo(os.environ.get("JOBQUEUE_TEST_DSN", ""), dbname=name),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    command = [sys.executable, "-m", "django", "jobs", *map(str, args)]
    source: dict[str, Any] = {"input": input} if stdin is None else {"stdin": stdin}
    done = subprocess.run(command, **source, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return Said(done.returncode, done.stdout, done.stderr)
