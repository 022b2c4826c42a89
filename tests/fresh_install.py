"""Installs the built wheel in a new virtual environment, as a user does, and runs commands there."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyte
from django.db import connection

ROOT = Path(__file__).parent.parent
OURS = ("PG", "DJANGO_", "JOBQUEUE_", "VIRTUAL_ENV", "PYTHONPATH")
SECONDS = 300


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@contextmanager
def empty_databases(*names: str) -> Iterator[dict[str, str]]:
    """Create these databases on the server of the tests, and yield libpq's variables of the server."""
    with connection._nodb_cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {name}")
    keys = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD"}
    settings = connection.settings_dict
    yield {name: str(settings[key]) for name, key in keys.items() if settings[key]}
    with connection._nodb_cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True)
class Installation:
    """A virtual environment, the folder of a project, and the environment variables for its commands."""

    venv: Path
    folder: Path
    environment: dict[str, str]

    @classmethod
    def create(cls, venv: Path, folder: Path, variables: dict[str, str]) -> Installation:
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        installation = cls(venv, folder, {**kept, **variables, "PATH": path, "VIRTUAL_ENV": str(venv)})
        uv = uv_command()
        create = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        installation.run(*create, str(venv))
        return installation

    def install(self, *requirements: str) -> None:
        uv = uv_command()
        command = [uv, "pip", "install", "--quiet"] if uv else [str(self.venv / "bin" / "pip"), "install", "--quiet"]
        self.run(*command, *requirements)

    def run(self, *command: str, **variables: str) -> str:
        """Run a command and return what it wrote. Fails if the command fails."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout

    def screen(self, *command: str, columns: int = 120, rows: int = 40) -> list[str]:
        """Run a command in a terminal of this size, and return the lines that are on its screen at the end."""
        screen = pyte.Screen(columns, rows)
        stream = pyte.ByteStream(screen)
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (rows, columns))
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | {"TERM": "linux"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        with suppress(OSError):  # Linux raises EIO when the last process has closed the terminal
            while written := os.read(ours, 65_536):
                stream.feed(written)
        os.close(ours)
        lines = [line.rstrip() for line in screen.display]
        assert process.wait(SECONDS) == 0, "\n".join(lines)
        return [line for line in lines if line]

    def manage(self, *arguments: str, **variables: str) -> str:
        return self.run("python", "manage.py", *arguments, **variables)

    @contextmanager
    def running(self, arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A command of manage.py that runs during the block, and is told to stop at its end."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["python", "manage.py", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(60)


def uv_command() -> str | None:
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
