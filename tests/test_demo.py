"""What the demo says when it cannot be, each in one sentence."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from example_project.demo import java_hint
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

        assert said == f"No demo: port {port} is taken; choose another: make demo ARGS='--port {port + 1}'."
        assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()  # nobody can write below that, not even root

    said = refused("--port", "0", "--folder", str(tmp_path / "file" / "shop"))

    assert "cannot be written (Not a directory); choose another folder: make demo ARGS='--folder" in said


def test_a_missing_java_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_hint() == "There is no Java 17 here, so jobs cannot be archived with Spark; all else works."

    old: Path = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "no Java 17" in java_hint()

    old.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert "make report" in java_hint()


@pytest.mark.parametrize("goal", ("demo", "play"))
def test_make_takes_the_newest_python_that_works(tmp_path, goal):
    """A shim that does not work is passed by, whatever it stands for."""
    for name, works in (("python3.14", False), ("python3.13", True), ("python3", True)):
        shim = tmp_path / name
        shim.write_text(f"#!/bin/sh\n{'exit 0' if works else 'exit 127'}\n")
        shim.chmod(0o755)
    asked = ["make", "--no-print-directory", "-n", goal, "VENV=/nowhere/venv", "-f", "Makefile"]

    found = {**environment(), "PATH": f"{tmp_path}:/bin:/usr/bin"}
    done = subprocess.run(asked, cwd=ROOT, env=found, capture_output=True, text=True, check=True)

    assert "python3.13 -m venv /nowhere/venv" in done.stdout
