"""The kit without pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runner import database_dsn

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.django_db
def test_a_project_s_tests_pass_under_django_s_own_runner():
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "django",
            "test",
            "tests.testing",
            "--noinput",
            "-p",
            "test_sample_[cp]*.py",
        ],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.testing.settings", "JOBQUEUE_TEST_DSN": database_dsn()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None
    assert int(ran[1]) > 30
