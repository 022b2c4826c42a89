"""Clocks that lie, for one process and its children: libfaketime, preloaded."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from example_project.postgres import Server, give_away


def library() -> Path:
    """The library inside the wheel; not imported, because importing it changes this process."""
    folder = Path(sysconfig.get_path("purelib")) / "libfaketime" / "vendor" / "libfaketime" / "src"
    return folder / "libfaketime.so.1"


def lying(file: Path, seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is ``seconds`` ahead; :func:`set_ahead` changes that while it runs."""
    set_ahead(file, seconds)
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # no clock of that kind ever jumps
        "DONT_FAKE_MONOTONIC": "1",
    }


@contextmanager
def lying_server(server: Server) -> Iterator[Callable[[int], None]]:
    """Restarts the server with a clock that ``ahead(seconds)`` changes, the same moment for all its processes."""
    file, copy = server.folder / "clock", server.folder / library().name
    shutil.copy(library(), copy)  # because the server's user may not enter where it is installed
    env = {**lying(file, 0), "LD_PRELOAD": str(copy), "FAKETIME_NO_CACHE": "1"}
    del env["FAKETIME_CACHE_DURATION"]
    give_away(server.folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        server.restart()
    try:
        yield lambda seconds: set_ahead(file, seconds)
    finally:
        server.restart()


def set_ahead(file: Path, seconds: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.chmod(0o644)
    new.replace(file)  # no process reads half of it
