"""A source tree whose ``django_jobqueue`` is measured, in a database of its own, with this tree's handlers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from example_project.postgres import Server
from tests.benchmarks.peers.peer import OURS
from tests.benchmarks.peers.stand import ROOT, environment

PACKAGE = "django_jobqueue"
_WHERE = f"import {PACKAGE}; print({PACKAGE}.__file__)"


class NotATree(Exception):
    """It is neither a folder with the package nor a commit that git knows."""


@contextmanager
def source(tree_or_ref: str) -> Iterator[Path]:
    """The folder of a tree, or of a temporary checkout of a commit."""
    if (folder := Path(tree_or_ref).resolve() / PACKAGE).is_dir():
        yield folder.parent
        return
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as temporary:
        checkout = Path(temporary) / "checkout"
        _git("worktree", "add", "--detach", str(checkout), tree_or_ref)
        try:
            yield checkout
        finally:
            _git("worktree", "remove", "--force", str(checkout))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise NotATree(f"git {' '.join(arguments)}: {done.stderr.strip()}")


class SourceTree:
    """One side of a comparison: its database, migrated by its own code, and a process that fills it."""

    def __init__(self, name: str, tree: Path, server: Server, folder: Path) -> None:
        self.name, self.database = name, f"cost_{name}"
        self.dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=self.database)
        library = folder / name
        library.mkdir()
        (library / PACKAGE).symlink_to(tree / PACKAGE)  # the package only: handlers and settings are those of this tree
        self.env = environment(server, self.database, **OURS.env)
        self.env |= {"PYTHONPATH": f"{library}:{ROOT}", "PYTHONSAFEPATH": "1"}
        self._check_import(library)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))
        self._run("-m", "django", "migrate", "--verbosity=0")
        self._filler = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.filling"],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell("install")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._filler.communicate()

    def tell(self, verb: str, *arguments: object) -> None:
        """Have the filling process do this, and wait until it has."""
        self._filler.stdin.write(json.dumps([verb, *arguments]) + "\n")  # type: ignore[union-attr]  # a pipe
        self._filler.stdin.flush()  # type: ignore[union-attr]
        if not self._filler.stdout.readline():  # type: ignore[union-attr]
            raise RuntimeError(f"the process that fills {self.database} ended at {verb}")

    @property
    def filler(self) -> int:
        """The id of the process that fills the database."""
        return self._filler.pid

    def runjobs(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "django", "runjobs", "--no-schedules", *options]

    def seeded(self, seed: int) -> Mapping[str, str]:
        """The environment with one order of hashes, so that both sides of a pair have the same."""
        return self.env | {"PYTHONHASHSEED": str(seed)}

    def _check_import(self, library: Path) -> None:
        found = self._run("-c", _WHERE)
        if not Path(found).is_relative_to(library):
            raise NotATree(f"{PACKAGE} of {self.name} is imported from {found}, not from {library}")

    def _run(self, *arguments: str) -> str:
        command: Sequence[str] = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.env, check=True, stdout=subprocess.PIPE, text=True).stdout
