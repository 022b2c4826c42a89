"""Starts the demo as a user does, and stops it whatever a test does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAID = re.compile(
    r"The shop +(?P<shop>\S+).*?log in as (?P<user>\S+) with the password (?P<password>\S+)"
    r".*?PGHOST=(?P<host>\S+) PGPORT=(?P<port>\S+) PGUSER=(?P<role>\S+) PGDATABASE=(?P<database>\S+)",
    re.DOTALL,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder for its server. The server may run as another user, who must be able to enter the folder."""
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        Path(name).chmod(0o777)
        yield Path(name) / "shop"


def environment() -> dict[str, str]:
    ours = ("PG", "JOBQUEUE_TEST_", "DJANGO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONUNBUFFERED": "1"}


class Demo:
    def __init__(self, folder: Path, port: int, variables: dict[str, str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", "--no-open", "--folder", str(folder), "--port", str(port)],
            cwd=ROOT,
            env=environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def introduction(self) -> dict[str, str]:
        """What it prints when it is up: the address and the log-in."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            self.said += line
            if "Press Ctrl-C to stop everything" in line:
                break
        found = SAID.search(self.said)
        assert found is not None, f"{self.said}\n{self.log()}"
        return found.groupdict()

    def interrupt(self) -> int:
        """As Ctrl-C does; its exit code."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=90)
        self.said += rest
        return self.process.returncode

    def log(self) -> str:
        path = self.folder / "demo.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def left(self) -> list[str]:
        """Processes that still use its folder."""
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if str(self.folder) in line]


@contextmanager
def demo(folder: Path, port: int = 0, variables: dict[str, str] | None = None) -> Iterator[Demo]:
    started = Demo(folder, port or free_port(), variables or {})
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.interrupt()
