"""A task sent under one version of Django and run under another: a project upgrades while jobs wait."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from tests.faults.runner import database_dsn

from .other_django import ROOT, ask, environment

OTHERS = [version for version in ("5.2", "6.0", "6.1") if not django.get_version().startswith(version)]
SEND = """
import django; django.setup()
from tests.tasks.app.tasks import version
print(version.enqueue(1, [2], text="three").id)
"""
READ = """
import django, json, sys; django.setup()
from tests.tasks.app.tasks import version
result = version.get_result(sys.argv[1])
error, = result.errors
value = result.return_value
print(json.dumps([result.status.value, value, result.attempts, error.exception_class.__name__, result.args]))
"""


@pytest.fixture(scope="session")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By version of Django: this one, and the others that need a Python this project supports."""
    folder: Path = tmp_path_factory.mktemp("django")
    others = [version for version in OTHERS if version != "5.2"]
    return {django.get_version()[:3]: sys.executable} | {one: environment(folder / one, one) for one in others}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_task_sent_under_one_django_runs_and_is_read_under_another(pythons):
    services.create_queue("default", retry_limit=1)
    dsn, versions = database_dsn(), list(pythons)
    assert len(versions) > 1
    following = dict(zip(versions, versions[1:] + versions[:1], strict=True))

    for sender, runner in following.items():
        id = ask(pythons[sender], dsn, "-c", SEND)
        ask(pythons[runner], dsn, "-m", "django", "runjobs", "--drain", "--no-schedules")
        status, value, attempts, error, args = json.loads(ask(pythons[following[runner]], dsn, "-c", READ, id))

        assert (status, attempts, error, args) == ("SUCCESSFUL", 2, "Refused", [1, [2]])
        assert value["django"].startswith(runner)
        assert (value["args"], value["kwargs"], value["errors"]) == ([1, [2]], {"text": "three"}, 1)
    rows = Job.objects.values_list("name", "data", "priority", "retry_limit", "tags").distinct()
    assert len(rows) == 1  # what is stored is the same for every version


REFUSE = """
import django; django.setup()
from django_tasks import exceptions
from tests.tasks.app.tasks import version
assert not hasattr(exceptions, "InvalidTaskError")
try:
    version.using(priority=101)
except exceptions.InvalidTask as error:
    print(error)
"""


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django 6 has tasks of its own")
def test_a_django_tasks_that_calls_its_errors_as_django_does_works_too(tmp_path):
    """The release after 0.12 renames them and keeps no alias: this is 0.12, renamed."""
    found = find_spec("django_tasks")
    assert found is not None
    assert found.origin is not None
    shutil.copytree(Path(found.origin).parent, tmp_path / "django_tasks")
    for module in (tmp_path / "django_tasks").rglob("*.py"):
        text = module.read_text().replace("InvalidTaskError", "InvalidTask")
        module.write_text(text.replace("InvalidTaskBackendError", "InvalidTaskBackend"))

    done = subprocess.run(
        [sys.executable, "-c", REFUSE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "DJANGO_SETTINGS_MODULE": "tests.tasks.settings"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "between -100 and 100" in done.stdout
