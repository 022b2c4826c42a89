"""Starting drivers and clusters, and leaving none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults.runner import ROOT, database_dsn

PATIENCE = 240  # a JVM on a busy machine


def environment() -> dict[str, str]:
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "JOBQUEUE_TEST_DSN": database_dsn()}


def run(*arguments: str, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """``manage.py jobs`` as an operator types it, ``before`` it another program that starts it."""
    command = [*before, sys.executable, "-m", "django", "jobs", *arguments]
    env = environment() | more
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


_EACH = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from django.core.management import execute_from_command_line
ended = []
for command in json.loads(sys.argv[1]):
    code, out, error = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        try:
            execute_from_command_line(["manage.py", "jobs", *command])
        except SystemExit as left:
            code = left.code or 0
    ended.append([code, out.getvalue(), error.getvalue()])
print(json.dumps(ended))
"""


def run_each(commands: Sequence[Sequence[str]], **more: str) -> list[subprocess.CompletedProcess[str]]:
    """The same for commands that end before Spark starts: one after the other in one process, because most of the time
    goes into its start."""
    said = subprocess.run(
        [sys.executable, "-c", _EACH, json.dumps(commands)], cwd=ROOT, env=environment() | more, capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    ended = zip(commands, json.loads(said.stdout), strict=True)
    return [subprocess.CompletedProcess(command, *answer) for command, answer in ended]


def without_java() -> dict[str, str]:
    """An environment in which a command that starts Spark says that there is no Java."""
    return {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""}


class Driver:
    """One archive; in a group of its own, so that it can be killed with its JVM."""

    def __init__(self, folder: Path, lake: str, *arguments: str) -> None:
        self.log = folder / f"driver-{'-'.join(arguments).replace('/', '') or 'whole'}-{os.urandom(2).hex()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.driver", lake, *arguments],
                cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, text=True,
            )  # fmt: skip

    def killed(self) -> bool:
        """Wait for its end, and tell whether it was the one it was told to have."""
        self._wait()
        return self.process.returncode == -signal.SIGKILL

    def answer(self) -> dict[str, Any]:
        out = self._wait()
        assert self.process.returncode == 0, self.log.read_text()[-3000:]
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer

    def _wait(self) -> str:
        try:
            return self.process.communicate(timeout=PATIENCE)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def spark_class(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of Spark's own, from the package that pip installed."""
    import pyspark

    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(command), f"org.apache.spark.deploy.{name}", *arguments],
            env=os.environ | small, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
