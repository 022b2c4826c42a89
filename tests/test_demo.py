"""The error of a demo that cannot run, in one sentence, and what the demo does with a database of other code."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from example_project import postgres
from example_project.demo import DemoError, database, java_hint
from example_project.layout import is_current
from tests.demo_process import ROOT, empty_folder, environment


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "example_project.demo", *arguments],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    return done.stderr.strip()


def test_a_taken_port_is_said_in_one_sentence():
    with socket.socket() as taken, empty_folder() as folder:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        said = refused("--port", str(port), "--folder", str(folder))

        assert (
            said == f"The demo cannot run: port {port} is in use; choose another: make demo ARGS='--port {port + 1}'."
        )
        assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()  # no user can create a folder below a file, not even root

    said = refused("--port", "0", "--folder", str(tmp_path / "file" / "shop"))

    assert "cannot be written (Not a directory); choose another folder: make demo ARGS='--folder" in said


def test_a_missing_java_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_hint() == "Java 17 was not found, so jobs cannot be archived with Spark. Everything else works."

    old: Path = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "Java 17 was not found" in java_hint()

    old.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert "make report" in java_hint()


@pytest.mark.parametrize("goal", ("demo", "play"))
def test_make_takes_the_newest_python_that_works(tmp_path, goal):
    """A shim that does not work is skipped, whatever version it stands for."""
    for name, works in (("python3.14", False), ("python3.13", True), ("python3", True)):
        shim = tmp_path / name
        shim.write_text(f"#!/bin/sh\n{'exit 0' if works else 'exit 127'}\n")
        shim.chmod(0o755)
    asked = ["make", "--no-print-directory", "-n", goal, "VENV=/nowhere/venv", "-f", "Makefile"]

    found = {**environment(), "PATH": f"{tmp_path}:/bin:/usr/bin"}
    done = subprocess.run(asked, cwd=ROOT, env=found, capture_output=True, text=True, check=True)

    assert "python3.13 -m venv /nowhere/venv" in done.stdout


@pytest.fixture(scope="module")
def shop() -> Iterator[postgres.Server]:
    """The running server of a demo that was started before."""
    with empty_folder() as folder, postgres.persistent(folder) as server:
        with database(server.folder):
            pass
        yield server


def query(server: postgres.Server, text: str, *, name: str | None = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn, dbname=name or server.database) as connection:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def databases(server: postgres.Server) -> set[str]:
    return {name for (name,) in query(server, "SELECT datname FROM pg_database WHERE NOT datistemplate")}


@pytest.mark.parametrize(
    ("change", "undo"),
    (
        ("UPDATE demo_layout SET digest = 'x' || digest", "UPDATE demo_layout SET digest = substr(digest, 2)"),
        (
            "INSERT INTO django_migrations (app, name, applied) VALUES ('jobqueue', '0002_of_other_code', now())",
            "DELETE FROM django_migrations WHERE name = '0002_of_other_code'",
        ),
        ("ALTER TABLE demo_layout RENAME TO hidden", "ALTER TABLE hidden RENAME TO demo_layout"),
    ),
    ids=("another file of that name", "a migration that is not there", "made before there was a record"),
)
def test_a_database_of_other_code_is_noticed(shop, change, undo):
    assert is_current(shop)
    query(shop, change)
    try:
        assert not is_current(shop)
    finally:
        query(shop, undo)


def test_a_migration_that_is_yet_to_be_applied_is_no_other_layout(shop):
    gone = "DELETE FROM django_migrations WHERE app = 'jobqueue' RETURNING app, name, applied"
    ((app, name, at),) = query(shop, gone)
    try:
        assert is_current(shop)
    finally:
        query(shop, f"INSERT INTO django_migrations (app, name, applied) VALUES ('{app}', '{name}', '{at}')")


def test_a_database_of_other_code_that_is_in_use_is_said_in_one_sentence(shop):
    query(shop, "ALTER TABLE demo_layout RENAME TO hidden")
    before = databases(shop)
    try:
        with (
            psycopg.connect(shop.dsn),
            pytest.raises(DemoError, match="was made by another version of the code and is in use; stop the programs"),
            database(shop.folder),
        ):
            pass
    finally:
        query(shop, "ALTER TABLE hidden RENAME TO demo_layout")

    assert databases(shop) == before


def test_a_database_of_other_code_is_kept_under_another_name_and_a_new_one_is_used_again(shop, capsys):
    query(shop, "CREATE TABLE mine AS SELECT 1 AS row; DROP TABLE demo_layout")
    before = databases(shop)

    with database(shop.folder):
        assert query(shop, "SELECT count(*) FROM jobqueue_job") == [(0,)]
        assert query(shop, "SELECT to_regclass('mine')") == [(None,)]

    (kept,) = databases(shop) - before
    assert query(shop, "SELECT * FROM mine", name=kept) == [(1,)]
    said = (
        "The database was made by another version of the code. The demo starts with a new database; the old one is "
        f"kept as {kept}.\n"
    )
    assert capsys.readouterr().out == said
    with database(shop.folder):
        assert databases(shop) == before | {kept}
    assert capsys.readouterr().out == ""
