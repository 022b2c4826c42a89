"""What a worker does not import, because each process would pay for it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.faults.runner import ROOT

NOT_NEEDED = {
    "tests.urls",
    "django_jobqueue.pipeline",
    "prometheus_client",
    "opentelemetry",
    "pyspark",
    "pyarrow",
    "factory",
}

PROGRAM = """
import sys
import django
django.setup()
from django.core.management import execute_from_command_line
from django_jobqueue.worker import supervisor
supervisor.Supervisor.run = lambda self: print(*sys.modules)
execute_from_command_line(["manage.py", "runjobs"])
"""


def test_a_worker_imports_neither_urls_nor_extras_before_it_starts_processes():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.faults.settings"}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    imported = set(done.stdout.split())
    assert "tests.faults.app.jobs" in imported, done.stderr
    assert NOT_NEEDED & imported == set()
